"""Evidence in, findings out. Pure arithmetic: no torch, no I/O, no clock."""
