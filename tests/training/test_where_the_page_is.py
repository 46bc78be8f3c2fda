"""The address of the page: with the token on a terminal, without it wherever it may be kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ampwatch.wire.rendezvous.token import read_token
from tests.host.daemon.parts import ROOT, Place, ask, eventually

TRAINING = """
import logging, sys
if "log" in sys.argv:
    logging.basicConfig(level=logging.INFO)
import torch
import ampwatch
from tests.trainings import build

torch.set_num_threads(1)
run = build("fp16-foreach")
watch = ampwatch.monitor(run.models, run.scaler, run="mine")
run.loop()
print(watch.url, watch, repr(watch.settings), *map(watch.report, ("text", "json", "html")))
sys.stdout.flush()
sys.stdin.readline()
"""


def read_all(terminal: int) -> str:
    """What was said on a terminal, until its last writer is gone."""
    said = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # what Linux reports at the end of a pseudo-terminal
            break
        if not chunk:
            break
        said += chunk
    os.close(terminal)
    return said.decode()


@pytest.mark.rotating
@pytest.mark.parametrize("how", ["terminal", pytest.param("log", marks=pytest.mark.nightly)])
def test_the_token_is_shown_on_a_terminal_and_kept_nowhere(tmp_path: Path, how: str) -> None:
    """Logs of trainings are handed on: by a shared disk, to a tracker, with a question."""
    place = Place(tmp_path)
    ended = {"AMPWATCH_GRACE_SECONDS": "0"}
    shown, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, how],
        env=place.environment | ended,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    ) as process:
        os.close(terminal)
        try:
            url = process.stdout.readline().split()[0]
            token = read_token(place.runtime)
            here = urlsplit(url)
            opened = ask((here.hostname, here.port), f"/?token={token}")
        finally:
            process.stdin.close()
        told = process.stdout.read()
        said = read_all(shown)
    eventually(lambda: place.info() is None, "the daemon ends by itself")
    kept = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "daemon.token"
    ]

    (line,) = (line for line in said.splitlines() if "watching run mine: " in line)
    assert opened.status == HTTPStatus.SEE_OTHER
    assert "scale_collapse" in said
    assert any("scale_collapse" in text for text in kept)
    for text in (told, *kept):
        assert token not in text
    if how == "terminal":
        assert re.search(rf" {url}\?token={token}#run=mine&started=[\d.]+$", line)
        assert said.count(token) == 1
    else:
        assert re.search(
            rf" {url}#run=mine&started=[\d.]+ \(in a new browser: `ampwatch url`\)$", line
        )
        assert token not in said
