"""Pictures of the page on the pages of kinds: the headline, and the finding unfolded.

``python -m tests.diagnoses.pictures [KIND...]`` runs the programs of ``docs/diagnoses`` and takes the
pictures again, those of some kinds or all; it wants Chromium. A picture carries the sentences that
are to be read on it, so that a test sees which are no longer those of its page.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from PIL import Image

from ampwatch.training import launcher, outlet
from ampwatch.wire.records import EndRecord
from tests.host.daemon.parts import eventually
from tests.states.clock import SECOND, START
from tests.states.pictures import Camera, Shot, keep, opened
from tests.states.played import Daemon, Ring
from tests.states.serving import served
from tools.site import kinds

PLACE = kinds.ROOT / kinds.PICTURES

RUN = "train"
"""Name of the run on the pictures: that of the file that a reader runs."""

SAID = "said"
"""Key under which a picture has the sentences on it."""

STYLE = """
#main { padding-top: 8px; }
body > :not(:has(#main)), #run > :not(#headline, section:has(#findings)) { display: none !important; }
#findings details:not([open], :has([open])), #findings .terms, #findings .place:has(.permalink) { display: none; }
"""
"""What a reader of a kind's page looks for: what is wrong with the run, and the finding. The rest of the
page is real time and the cost of this machine; what terms mean, and this page, are a click away."""

UNFOLD = """
for (const row of document.querySelectorAll("#findings details")) {
  if (row.dataset.kind !== arguments[0]) continue;
  for (let box = row; box; box = box.parentElement.closest("details")) box.open = true;
  return ["summary", "advice"].map((name) => row.querySelector(`.${name}`)?.lastChild.textContent ?? "");
}
return null;
"""

HEIGHT = """
const end = [...document.querySelectorAll("#findings details[open]")].at(-1).getBoundingClientRect().bottom;
return [document.getElementById("headline").getBoundingClientRect().top + scrollY, end + scrollY];
"""

WIDTH = 860
"""What a column of the docs shows without making it smaller. Unit: CSS pixels."""

MARGIN = 8
"""Above and below what is shown. Unit: CSS pixels."""


def sentences_on(picture: Path) -> list[str]:
    """Return the summary and the advice that are to be read on a picture."""
    with Image.open(picture) as opened_one:
        said: list[str] = json.loads(opened_one.info[SAID])
    return said


def _recorded(job: tuple[str, str]) -> str:
    """Run the program of a kind with a ring in a directory; return why that was not possible, if so."""
    kind, place = job
    text = (kinds.ROOT / "docs" / "diagnoses" / f"{kind}.md").read_text(encoding="utf-8")
    program = kinds.program_of(text, kinds.PROGRAM).replace("serve=False", f'run="{RUN}"')
    torch.set_num_threads(1)
    kinds.even(kind, setattr)
    # A daemon that is there and reads, but takes no file away.
    status = launcher.DaemonStatus("http://127.0.0.1:10917/", "running")
    for name, answer in (("ensure_daemon", status), ("daemon_is_running", True)):
        setattr(outlet, name, lambda _settings, answer=answer: answer)
    own = ("AMPWATCH_RUNTIME_DIR", "AMPWATCH_RING_DIR", "XDG_STATE_HOME")
    os.environ |= dict.fromkeys(own, place)
    try:
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            kinds.executed(program)
    except Exception as error:  # noqa: BLE001 - another one's may run
        return f"{type(error).__name__}: {error}"
    return ""


def _daemon_of(place: str) -> Daemon:
    """Return a daemon that has read the ring in ``place``, of a training that goes on."""
    (path,) = Path(place).glob("*.ring")
    ring = Ring.read(path, {0.0: True})
    ring.records = [
        (at, record) for at, record in ring.records if not isinstance(record, EndRecord)
    ]
    daemon = Daemon([ring], START)
    daemon.poll(max(at for at, _ in ring.records) + 1 / SECOND)
    return daemon


def _draw(camera: Camera, kind: str, daemon: Daemon) -> None:
    camera.aim(Shot(kind, "tall-laptop", "light"))
    with served(daemon) as address:
        camera.open(f"{address}#run={RUN}", RUN)
        camera.screen(WIDTH, 2400)
        said = eventually(lambda: camera.browser.execute_script(UNFOLD, kind), kind, seconds=20.0)
        time.sleep(0.2)
        top, bottom = camera.browser.execute_script(HEIGHT)
        height = bottom - top + 2 * MARGIN
        clip = {"x": 0, "y": max(0, top - MARGIN), "width": WIDTH, "height": height, "scale": 1}
        keep(camera.take_screen(clip=clip), PLACE / f"{kind}.png", {SAID: json.dumps(said)})


def main(names: Sequence[str]) -> int:
    """Take the pictures of these kinds, or of all; return the exit status."""
    chosen = [
        page.stem
        for page in kinds.PAGES
        if (not names or page.stem in names) and kinds.has_program(page.read_text("utf-8"))
    ]
    amiss: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        jobs = [(kind, str(place / kind)) for kind in chosen]
        for _, own in jobs:
            Path(own).mkdir(mode=0o700)
        # Each program in a process of its own, as a reader has it.
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            troubles = pool.map(_recorded, jobs, chunksize=1)
        with opened(place / "browser", {}) as browser:
            camera = Camera(browser, STYLE)
            for (kind, own), trouble in zip(jobs, troubles, strict=True):
                if trouble:
                    amiss.append(f"{kind}: {trouble}")
                else:
                    _draw(camera, kind, _daemon_of(own))
    drawn = f"{len(chosen) - len(amiss)} pictures taken"
    sys.stderr.write("\n".join([*amiss, drawn, ""]))
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
