"""Scalers that are not torch's: the protocol, one row for each framework that has one, and evidence."""
