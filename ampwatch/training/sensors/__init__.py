"""Sensors inside the training process, one file per thing that is watched."""
