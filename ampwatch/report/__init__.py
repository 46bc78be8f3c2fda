"""Words and pictures, for both halves."""
