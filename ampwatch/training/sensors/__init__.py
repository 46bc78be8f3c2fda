"""What is watched inside the training process, one file per thing."""
