"""Rendezvous: a process finds the daemon of its user and machine."""
