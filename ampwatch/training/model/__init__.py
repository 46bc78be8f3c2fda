"""What is known of the watched model, its optimizers, its scaler and the machine."""
