"""Transfer of values from device to host, without a sync."""
