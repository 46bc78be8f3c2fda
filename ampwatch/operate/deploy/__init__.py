"""Writes the tree that starts Prometheus, Alertmanager and Grafana around ampwatch.

``options.py`` says what may be asked for, ``tree.py`` what is in the files, ``writing.py`` which of them
are written. A file lies where it lies in a checkout, so the paths in it hold in both.
"""
