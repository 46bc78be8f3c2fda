"""The examples of docs/page.md: `python -m tests.cli.terminal_examples` writes their output there."""

from __future__ import annotations

import io
import math
import os
import re
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from ampwatch.cli import daemon_state, main
from ampwatch.cli.top.table import clean
from ampwatch.host.fleet import Fleet
from ampwatch.host.page.rank_lists import RankLists
from ampwatch.report.rank_list import RankList, unpacked
from ampwatch.settings import Settings
from ampwatch.state.recorder import recorded
from ampwatch.wire.blackbox import files
from ampwatch.wire.records import EndRecord, FindingRecord, RunState
from tests.host.daemon.parts import ROOT
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import alarm, end, identity, optimizer, skipped_step, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.wire.records import Record

PAGE = ROOT / "docs" / "page.md"
WIDTH = 100
NOW_S = START + 90.0
BROKEN_AT = 40
STEPS = 60

_BLOCK = re.compile(r"```console\n\$ (ampwatch [^\n]*)\n(.*?)```", re.DOTALL)


def found() -> list[Record]:
    """An overflow and the collapse that follows from it, in the words that detectors have."""
    cause = alarm(
        "forward_overflow",
        "decoder.3.ffn",
        op="mm",
        phase="forward",
        dtype="float16",
        first_step=BROKEN_AT,
        last_step=STEPS - 1,
        count=STEPS - BROKEN_AT,
        source="model.py:130",
        evidence={"in_amax": 312.5, "out_amax": math.inf, "dtype_max": 65504.0},
        summary="mm in decoder.3.ffn overflowed float16, whose largest number is 65504",
        kind_advice="Run decoder.3.ffn in float32 with torch.autocast(device, enabled=False), or use bfloat16",
    )
    collapse = alarm(
        first_step=BROKEN_AT + 4,
        last_step=STEPS - 1,
        count=STEPS - BROKEN_AT - 4,
        evidence={"loss_scale": 2.0**-4},
        summary="The loss scale is collapsing: every step is skipped since step 40",
        kind_advice="Look for what overflows at every scale",
    )
    collapse.root, collapse.caused_by = False, cause.key
    return [FindingRecord(cause), FindingRecord(collapse)]


def history(*, is_broken: bool) -> Iterator[Record]:
    """Sixty steps, of which the last twenty are skipped where it is broken."""
    for i in range(STEPS):
        loss = 1.0 + 3.0 * math.exp(-i / 12)
        if is_broken and i >= BROKEN_AT:
            yield skipped_step(i, 2.0 ** (16 + BROKEN_AT - 1 - i), loss=math.nan)
        else:
            yield step(i, loss=loss, duration_s=0.25)
    skipped = (0, 0, 0, STEPS - BROKEN_AT) if is_broken else (0, 0, 0, 0)
    yield optimizer(0, total_steps=STEPS, total_skipped=skipped)
    if is_broken:
        yield from found()


def state() -> RankList:
    """A state of a daemon: four ranks of a run, one of which is broken, and a run that has ended."""
    clock = Clock(NOW_S)
    fleet = Fleet(Settings(), clock)
    for rank in range(4):
        who = identity(rank=rank, local_rank=rank, world_size=4)
        put(fleet, f"/gpt-{rank}.ring", who, history(is_broken=rank == 2))
    done: list[Record] = [*history(is_broken=False), end()]
    put(fleet, "/bert.ring", identity(run="bert", world_size=1), done, alive=False)
    return unpacked(RankLists(fleet, clock).sent(), clean)


def leave_reports(directory: Path) -> None:
    """Leave what a run leaves behind that was broken."""
    ended = EndRecord(RunState.FINISHED, "", int((START + STEPS + 1) * SECOND))
    who = identity(world_size=1)
    made = recorded(who, [*history(is_broken=True), ended], steps=256)
    files.write(directory, made.box("training", int((START + STEPS + 2) * SECOND)), most=4)


def output_of(command: str) -> str:
    """Return what a command prints; of ``| head -N`` the first N lines."""
    line, _, cut = command.partition(" | head -")
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        leave_reports(Path(place))
        known = {
            "AMPWATCH_REPORT_DIR": place,
            "AMPWATCH_RING_DIR": f"{place}/rings",
            "AMPWATCH_RUNTIME_DIR": f"{place}/runtime",
            "COLUMNS": str(WIDTH),
        }
        Path(place, "runtime").mkdir(mode=0o700)
        with (
            patch.dict(os.environ, known),
            patch.object(time, "time", lambda: NOW_S),
            patch.object(daemon_state, "read", lambda _settings, _clean: state()),
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            main(line.split()[1:])
    lines = said.getvalue().splitlines()
    return "\n".join(lines[: int(cut)] if cut else lines) + "\n"


def written(page: str) -> str:
    """Return the page with the output of each command as it is now."""
    return _BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{output_of(m[1])}```", page)


def commands(page: str) -> list[str]:
    """Return the commands whose output the page has."""
    return [match[1] for match in _BLOCK.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
