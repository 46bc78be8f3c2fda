"""The host's own sensors: readings of NVML and GPM about the GPUs of this machine.

Everything is asked from one thread, so that a driver that hangs stalls neither the
rings nor a scrape; a second one waits for XID errors. No torch here.
"""
