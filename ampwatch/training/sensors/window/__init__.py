"""Profiler windows: kernels, tensor cores and step times."""
