"""The version, for those whom the package itself imports."""

__version__ = "0.2.0"
