"""Hostile input for everything that ampwatch reads: one module for each kind, with ``SEEDS`` and ``one``.

``one`` takes some bytes as a stranger would leave them, and raises for a defect alone: what is documented to be
refused, it takes. What it returns, if anything, names how the input was taken; an input that is taken in a new way is
mutated further. ``MANY``, where it is there, says how many inputs the short run takes; ``WORDS`` are pieces that mutants get.
"""
