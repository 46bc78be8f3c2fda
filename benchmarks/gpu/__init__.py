"""Everything that wants a GPU, in one run: `python -m benchmarks.gpu`, or `make gpu`."""

import sys
from pathlib import Path

# The programs beside this package import one another as neighbours, and so do processes they start.
_NEIGHBOURS = str(Path(__file__).parent.parent)
if _NEIGHBOURS not in sys.path:
    sys.path.append(_NEIGHBOURS)
