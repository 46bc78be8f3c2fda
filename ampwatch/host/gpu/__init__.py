"""The host's own sensors: what NVML and GPM tell about the GPUs of this machine.

Everything is asked from one thread, so that a driver that hangs stalls neither the
rings nor a scrape; a second one waits for XID errors. No torch here.
"""
