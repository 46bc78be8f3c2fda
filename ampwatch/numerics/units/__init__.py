"""Which unit of a GPU multiplied what, in which precision, and how fast it could have. No torch."""
