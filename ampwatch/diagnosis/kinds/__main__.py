"""``python -m ampwatch.diagnosis.kinds`` writes the tables of kinds into the documentation."""

import sys

from ampwatch.diagnosis.kinds.tables import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
