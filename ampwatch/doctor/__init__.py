"""What this machine can and cannot measure, and why: one probe per group of capabilities.

A probe looks; it starts nothing, creates nothing and changes nothing.
"""
