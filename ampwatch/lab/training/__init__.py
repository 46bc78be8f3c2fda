"""What the laboratory does in a training."""
