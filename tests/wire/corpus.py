"""Files that releases have written, kept as they were: rings of every layout, reports of every version.

``python -m tests.wire.corpus`` adds those of a layout or version that is new. A file that is there is
never written again: what was written once is in the hands of users.

The rings of layout 1 to 5 are of small real trainings of those days, whose loss was infinite in six steps. That of layout 6 holds one record of each kind.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ampwatch.wire.blackbox.document import VERSION, to_json
from ampwatch.wire.ring import RingWriter, layout
from tests.wire.ring.samples import (
    CHECKSUM,
    END,
    FACTS,
    FAILURE,
    IDENTITY,
    census,
    finding,
    optimizer,
    ranges,
    sampling,
    step,
    window,
)
from tests.workshop.boxes import box
from tests.workshop.records import budgeted, culprit, device_phases, memory, planned

FILES = Path(__file__).parents[1] / "golden" / "wire"

RECORDS = (
    step(1),
    optimizer(0),
    FACTS,
    finding(),
    ranges(),
    sampling(1),
    census(),
    window(),
    FAILURE,
    CHECKSUM,
    culprit(),
    device_phases(),
    memory(),
    planned(),
    budgeted(),
    END,
)
"""One of each kind."""

RING = FILES / f"layout-{layout.LAYOUT}.ring"
REPORT = FILES / f"report-{VERSION}-of-layout-{layout.LAYOUT}.json"


def ring() -> bytes:
    """A ring of this layout that holds ``RECORDS``."""
    with tempfile.TemporaryDirectory() as directory:
        writer = RingWriter.create([Path(directory)], IDENTITY, slots=64)
        for record in RECORDS[:-1]:
            writer.put(record)
        writer.close(END, keep=True)
        return writer.path.read_bytes()


def main() -> None:
    for path, make in ((RING, ring), (REPORT, lambda: to_json([box()]).encode())):
        if path.exists():
            sys.stderr.write(f"{path.name} is there, and stays as it is\n")
        else:
            path.write_bytes(make())


if __name__ == "__main__":
    main()
