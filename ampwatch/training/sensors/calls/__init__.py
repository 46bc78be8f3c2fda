"""How AMP is used: backward, clipping, steps around the scaler, exceptions."""
