"""Scripted states: one small real training per state, and every way in which ampwatch speaks of it."""
