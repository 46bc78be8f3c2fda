"""Real trainings that fail in one way each, and those that only look as if they did."""
