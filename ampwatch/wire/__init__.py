"""What passes between the two halves: records, the ring that carries them, and how a process finds its daemon."""
