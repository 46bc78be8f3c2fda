"""What runs in the host's daemon: it keeps records and shows them. No torch."""
