"""``python -m ampwatch.catalog`` prints ``docs/metrics.md``."""

import sys

from ampwatch.catalog import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
