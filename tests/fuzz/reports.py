"""Documents and rings that ``ampwatch report`` is handed, read and put into words, in every form there is."""

from __future__ import annotations

import re

from ampwatch.errors import AmpwatchError
from ampwatch.host.daemon.leftovers import jobs, read_path
from ampwatch.host.page.ended_page import list_html
from ampwatch.report.html_report import render_html
from ampwatch.report.judged_boxes import judge_boxes, render_json
from ampwatch.report.report import one_line, render_boxes
from ampwatch.report.run_list import row_of
from ampwatch.wire.blackbox.document import from_json, to_json
from tests.fuzz.engine import scratch
from tests.wire.ring.samples import census, finding, ranges, ring_bytes, slot_bytes, step, window
from tests.workshop.boxes import box

from ampwatch.wire.ring.encoding import encode  # isort: skip

from ampwatch.wire.records import Record


def _ring() -> bytes:
    records: list[Record] = [step(1), finding(), ranges(), census(), window(), step(3)]
    body, sequence = b"", 0
    for record in records:
        kind, payload = encode(record, 64 * 240)
        parts = [payload[i : i + 240] for i in range(0, len(payload), 240)]
        for chunk, part in enumerate(parts):
            body += slot_bytes(sequence, kind, part, chunk, len(parts))
            sequence += 1
    return bytes(ring_bytes(sequence, body))


SEEDS = (
    to_json([box()]).encode(),
    to_json([box(), box()]).encode(),
    b'{"format":"ampwatch-report","version":1,"ranks":[]}',
    _ring(),
)
WORDS = (b'"ampwatch-report"', b'"NaN"', b'"rows"', b'"counts"', b"<script>", b"[" * 3000, b'{"a":' * 3000)  # fmt: skip
MANY = 250

ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
"""What acts on a terminal, or turns what is read around."""


def one(data: bytes) -> object:
    path = scratch() / "report.json"
    path.write_bytes(data)
    try:
        boxes = read_path(path)
    except AmpwatchError as error:
        return re.sub(r"\W*\d[\d.,]*|'[^']*'", "", str(error))[:200]
    for job in jobs(boxes):
        text = render_boxes(job) + judge_boxes(job).level.value + one_line(job[0])
        assert ESCAPES.search(text) is None, ESCAPES.search(text)
        listed = list_html(
            [row_of(job)], directory="", days=1, picked=("", ""), compared=(job, job)
        )
        page = render_html(job) + listed
        assert "<script>alert" not in page
        assert len(from_json(render_json(job), "again")) == len(job)
    return len(boxes)
