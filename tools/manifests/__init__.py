"""Manifests of ``deploy/`` that are made of others: see ``__main__.py``."""
