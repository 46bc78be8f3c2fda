"""``python -m ampwatch.host.metrics.catalog`` prints ``docs/metrics.md``."""

import sys

from ampwatch.host.metrics.catalog import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
