"""Records made of evidence, for the wire."""
