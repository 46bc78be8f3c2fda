"""Evidence that sensors hand to the diagnosis: plain numbers, no tensors."""
