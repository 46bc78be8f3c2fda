"""Calls of the watched models that are kept, and made again on a replica of the model."""
