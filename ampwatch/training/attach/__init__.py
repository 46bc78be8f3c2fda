"""Attaching without a line of code: what `ampwatch run` has loaded in a program."""
