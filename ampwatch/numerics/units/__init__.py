"""Units of a GPU: which of them multiplied what, in which precision, at what peak. No torch."""
