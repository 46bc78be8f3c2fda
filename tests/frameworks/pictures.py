"""Pictures of what users of a framework look at: TensorBoard, with the numbers of ampwatch among their own.

``python -m tests.frameworks.pictures PYTHON [FRAMEWORK...]`` trains with each framework as its page in
``docs/integrations`` says, with an overflow planted half-way, and takes the picture of what TensorBoard
shows then. It wants Chromium, and a Python with the frameworks and TensorBoard.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from selenium import webdriver

from tests.frameworks.environments import ENVIRONMENTS, Environment
from tests.frameworks.running import Fault, Runner, Way
from tests.host.daemon.parts import ROOT, eventually
from tests.integration.browsing import FLAGS
from tests.states.pictures import COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PLACE = ROOT / "docs" / "images" / "integrations"

FRAMEWORKS = {"transformers": "hf-trainer", "lightning": "lightning", "accelerate": "accelerate"}
"""Pages of ``docs/integrations``, and the environments whose programs are theirs."""

MODES = {"accelerate": "tracked"}
"""What a program is told besides, where it has more than one way to log."""

SIZE = {"width": 1330, "height": 1050}
"""Of what is to be seen: TensorBoard's bars, and four cards. Unit: CSS pixels."""

TAGS = "amp/(grad_norm|loss|loss_scale|skipped_steps)$"
"""Which curves are on the picture: four cards, which is what it has room for."""

LOG_EVERY = "2"
"""Iterations between two points: the programs are short."""

CLOSE_SETTINGS = (
    "document.querySelector('button[aria-label=\"Toggle settings side pane\"]').click()"
)

DRAWN = "return document.querySelectorAll('card-view line-chart svg').length >= 4"
"""Whether all four cards have a chart."""


@contextlib.contextmanager
def tensorboard(python: str, board: Path) -> Iterator[str]:
    """Serve a directory of event files on loopback, and return the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "tensorboard.main", "--logdir", str(board), "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "--port", str(port), "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        address = f"http://127.0.0.1:{port}/"
        try:
            eventually(lambda: _answers(f"{address}data/runs"), "TensorBoard", seconds=60.0)
            yield address
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.read().strip() not in (b"", b"[]")
    except (urllib.error.URLError, OSError):
        return False


def recorded(python: str, row: Environment, directory: Path) -> Path:
    """Train as the page of the framework says; return the directory of the event files."""
    board = directory / "board"
    os.environ |= {"PROGRAM_BOARD": str(board), "PROGRAM_LOG_EVERY": LOG_EVERY}
    runner = Runner(python, directory)
    with runner.daemon() as daemon:
        outcome = runner.run(row, Way.EDIT, Fault.OVERFLOW, daemon)
    if outcome.code:
        raise SystemExit(outcome.stderr)
    return board


def take(browser: webdriver.Chrome, address: str, path: Path) -> None:
    """Keep a picture of the curves."""
    screen = {**SIZE, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    tags = urllib.parse.quote(TAGS, safe="")
    browser.get(f"{address}?darkMode=false&smoothing=0&tagFilter={tags}#timeseries")
    eventually(lambda: browser.execute_script(DRAWN), "four charts", seconds=60.0)
    browser.execute_script(CLOSE_SETTINGS)
    time.sleep(2.0)  # until cards have found their places, and curves are drawn again
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {})
    with Image.open(io.BytesIO(base64.b64decode(shot["data"]))) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main(python: str, names: Sequence[str]) -> int:
    """Take the pictures of these frameworks, or of all; return the exit status."""
    rows = {row.name: row for row in ENVIRONMENTS}
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    PLACE.mkdir(parents=True, exist_ok=True)
    for framework in names or FRAMEWORKS:
        row = replace(rows[FRAMEWORKS[framework]], mode=MODES.get(framework, ""))
        with tempfile.TemporaryDirectory() as directory:
            board = recorded(python, row, Path(directory))
            with tensorboard(python, board) as address, webdriver.Chrome(options) as browser:
                take(browser, address, PLACE / f"{framework}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
