"""Pure arithmetic on numbers and formats: no torch, no hooks, no clock."""
