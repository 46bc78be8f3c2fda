"""One file per way out of the daemon. They render what the fleet knows; they never compute."""
