"""Wire between the two halves: records, the ring that carries them, and the search for a daemon."""
