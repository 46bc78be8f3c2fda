"""Tests of the package as a whole: what importing it costs, and what it offers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ampwatch

HEAVY = ("torch", "numpy", "prometheus_client", "pynvml", "plotly", "http.server")
"""Modules that no import of the package alone may load."""

HOST_HALF = [
    "ampwatch.host.fleet",
    "ampwatch.host.metrics.catalog",
    "ampwatch.cli",
    "ampwatch.cli.daemon",
    "ampwatch.host.daemon.app",
    "ampwatch.host.page.page",
    "ampwatch.host.metrics.prometheus",
    "ampwatch.wire.ring",
]


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    """``import ampwatch`` is free until a name is used."""
    loaded = loaded_by("import ampwatch")

    assert loaded & set(HEAVY) == set()
    assert {m for m in loaded if m.startswith("ampwatch")} == {"ampwatch"}


@pytest.mark.parametrize("module", HOST_HALF)
def test_the_host_half_runs_without_torch(module: str) -> None:
    """No import of the daemon's side loads torch, not even through a parent package."""
    assert "torch" not in loaded_by(f"import {module}")


def test_the_training_half_loads_neither_prometheus_nor_a_server() -> None:
    """``ampwatch.monitor`` brings torch, and nothing of the daemon's own."""
    loaded = loaded_by("import ampwatch; ampwatch.monitor")

    assert "torch" in loaded
    assert loaded & {"prometheus_client", "plotly", "ampwatch.host.daemon.server"} == set()


WATCHED_TRAINING = """
import torch, ampwatch
model = torch.nn.Linear(4, 2)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
with ampwatch.monitor(model, scaler, level={level!r}, serve=False) as watch:
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(3, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for format in ("text", "json", "html"):
        assert watch.report(format)
assert watch.last_step.step == 3
"""


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_a_watched_training_loads_nothing_of_the_host_half(level: str) -> None:
    """From the first step to the report in each format and the close."""
    code = WATCHED_TRAINING.format(level=level)
    loaded = loaded_by(f"exec({code!r})")

    assert "ampwatch.training.session" in loaded
    assert {m for m in loaded if m.startswith("ampwatch.host")} == set()


def test_errors_and_records_can_be_had_without_torch() -> None:
    """A program that only catches errors or reads findings does not pay for torch."""
    assert "torch" not in loaded_by("import ampwatch; ampwatch.SettingsError, ampwatch.Finding")


@pytest.mark.parametrize("name", ampwatch.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """``__all__`` promises nothing that does not resolve."""
    thing = getattr(ampwatch, name)

    assert getattr(thing, "__name__", name).rpartition(".")[2] == name


def test_the_names_for_the_type_checker_are_the_public_names() -> None:
    """Editors see under ``TYPE_CHECKING`` what a running program gets, from the same module."""
    tree = ast.parse(Path(ampwatch.__file__ or "").read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert sorted([*seen, "__version__"]) == sorted(ampwatch.__all__)
    for name, module in seen.items():
        assert getattr(import_module(module or ""), name) is getattr(ampwatch, name)


def test_a_star_import_gives_the_public_names() -> None:
    """``from ampwatch import *`` resolves every one of them, lazily loaded ones included."""
    names: dict[str, object] = {}
    exec("from ampwatch import *", names)

    assert set(ampwatch.__all__) <= names.keys()


def test_dir_lists_the_public_names() -> None:
    """Completion in a shell shows them before they are loaded."""
    assert dir(ampwatch) == sorted(ampwatch.__all__)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names() -> None:
    """``hasattr`` works, and a slip is answered with what there is."""
    assert not hasattr(ampwatch, "watch")
    with pytest.raises(AttributeError, match=r"'watch'; it has .*monitor"):
        ampwatch.watch  # noqa: B018 - reading it is the test


def test_the_module_does_not_hide_the_function() -> None:
    """``ampwatch.monitor`` is the function, whatever was imported before."""
    import_module("ampwatch.training.monitor")

    assert callable(ampwatch.monitor)


def test_the_version_is_one() -> None:
    """Three numbers, as the packaging rules want them."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", ampwatch.__version__)
