"""The laboratory can be taken away, and is loaded only where it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ampwatch import laboratory
from ampwatch.cli import main

PROGRAM = """
import sys
if {is_gone}:
    sys.modules["ampwatch.lab"] = None
import torch, ampwatch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
with ampwatch.monitor(model, scaler, serve=False, level="deep", lab={lab}) as watch:
    for _ in range(4):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(watch.report("html")) > len(watch.report()) > 200
print(*(name for name in sys.modules if name.startswith("ampwatch.lab.")))
"""


def _loaded(*, lab: bool, is_gone: bool = False) -> list[str]:
    program = PROGRAM.format(lab=lab, is_gone=is_gone)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.split()


@pytest.mark.each_commit
def test_a_training_without_it_does_not_load_it() -> None:
    """Nor needs it: it runs the same where there is no such package."""
    assert _loaded(lab=False) == []
    assert _loaded(lab=False, is_gone=True) == []
    assert "ampwatch.lab.training.part" in _loaded(lab=True)


@pytest.mark.parametrize("verb", laboratory.VERBS)
def test_its_commands_have_their_old_place_too(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help of the command line lists them under `lab` alone."""
    said = []
    for words in (["lab", verb], [verb]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        said.append(capsys.readouterr().out.partition("\n\n")[2])
    assert said[0] == said[1]

    assert main([]) == 0
    assert f"\n    {verb} " not in capsys.readouterr().out
    assert main(["lab"]) == 0
    assert f"\n    {verb} " in capsys.readouterr().out
