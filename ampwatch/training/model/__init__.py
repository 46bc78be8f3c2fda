"""Knowledge of the watched model, its optimizers, its scaler and the machine."""
