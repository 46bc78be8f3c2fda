"""The one measurement: exponents of many tensors in one pass. Each kernel fills the same rows."""
