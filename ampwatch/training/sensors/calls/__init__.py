"""Use of AMP: backward, clipping, steps around the scaler, exceptions."""
