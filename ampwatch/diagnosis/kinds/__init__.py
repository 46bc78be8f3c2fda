"""What is said of each kind of finding."""
