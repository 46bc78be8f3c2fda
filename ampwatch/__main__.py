"""``python -m ampwatch``: the command line, where the script is not on the path."""

import sys

from ampwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
