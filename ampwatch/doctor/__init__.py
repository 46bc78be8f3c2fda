"""Probes of what this machine can measure, cannot, and why: one for each group of capabilities.

A probe observes: it starts nothing, creates nothing and changes nothing.
"""
