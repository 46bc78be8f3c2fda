"""From device to host without a sync."""
