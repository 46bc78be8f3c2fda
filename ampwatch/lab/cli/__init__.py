"""The verbs of the laboratory, one a file."""
