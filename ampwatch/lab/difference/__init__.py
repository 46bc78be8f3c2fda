"""Two runs held against each other, by their tapes."""
