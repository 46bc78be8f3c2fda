"""The daemon's half: keeps the records of training processes and shows them. No torch."""
