"""Answers to findings. Users reach them as ``ampwatch.actions``."""
