"""Every line that replaces or hooks something of torch."""
