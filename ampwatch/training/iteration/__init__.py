"""What is one iteration, and what is measured in which."""
