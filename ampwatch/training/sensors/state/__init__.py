"""State that outlives an iteration, held against that of other ranks."""
