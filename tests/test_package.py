"""Tests of the package as a whole: what importing it costs, and what it offers."""

from __future__ import annotations

import ast
import pydoc
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ampwatch
from tests.workshop.alone import python

if TYPE_CHECKING:
    from tests.workshop.nursery import Nursery

HEAVY = ("torch", "numpy", "prometheus_client", "pynvml", "http.server")
"""Modules that no import of the package alone may load."""

HOST_HALF = (
    "ampwatch.host.fleet, ampwatch.host.metrics.catalog, ampwatch.cli, ampwatch.cli.daemon,"
    " ampwatch.host.daemon.app, ampwatch.host.page.page, ampwatch.host.metrics.prometheus,"
    " ampwatch.wire.ring"
)


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(python("-c", code).stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    """``import ampwatch`` is free until a name is used."""
    loaded = loaded_by("import ampwatch")

    assert loaded & set(HEAVY) == set()
    assert {m for m in loaded if m.startswith("ampwatch")} == {
        "ampwatch",
        "ampwatch.last_resort",
        "ampwatch.version",
    }


@pytest.mark.parametrize("collects", [True, False])
def test_a_name_is_loaded_without_a_collection_of_garbage(*, collects: bool) -> None:
    """Of the oldest generation, which is all that the program has made; afterwards it collects as before."""
    code = f"""
import gc, torch, ampwatch
{"" if collects else "gc.disable()"}
begun = []
gc.callbacks.append(lambda _phase, info: info["generation"] == 2 and begun.append(1))
ampwatch.monitor
print(len(begun), gc.isenabled())
"""
    said = python("-c", code)

    assert said.stdout == f"0 {collects}\n"


def test_a_name_that_cannot_be_loaded_for_want_of_descriptors_says_what_to_do() -> None:
    """And is loaded once there are some again."""
    code = """
import resource, ampwatch
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    ampwatch.Finding
except OSError as error:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(error, ampwatch.Finding.__name__)
"""
    said = python("-c", code)

    assert "expected to load ampwatch.wire.records, got: Too many open files" in said.stdout
    assert "import ampwatch.Finding where the program begins, or raise the limit" in said.stdout
    assert said.stdout.endswith(" Finding\n")


def test_the_host_half_runs_without_torch() -> None:
    """No import of the daemon's side loads torch, not even through a parent package."""
    assert "torch" not in loaded_by(f"import {HOST_HALF}")


WATCHED_TRAINING = """
import sys, torch, ampwatch
model = torch.nn.Linear(4, 2)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
with ampwatch.monitor(model, scaler, level="deep", serve=False) as watch:
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
print(*sys.modules)
"""


def test_a_watched_training_loads_nothing_of_the_host_half(nursery: Nursery) -> None:
    """Nor a server: from the first step to the report in each format and the close."""
    program = nursery.start(WATCHED_TRAINING)
    assert program.wait() == 0, program.stderr
    loaded = set(program.stdout.split())

    assert {"torch", "ampwatch.training.session"} <= loaded
    assert "prometheus_client" not in loaded
    assert {m for m in loaded if m.startswith("ampwatch.host")} == set()


@pytest.mark.rotating
@pytest.mark.parametrize(("level", "counts_ops"), [("light", False), ("standard", True)])
def test_what_counts_ops_is_loaded_at_set_up_where_ops_are_counted(
    level: str, *, counts_ops: bool
) -> None:
    """PyTorch's formulas for FLOPs import Triton: not at light, and not in a step."""
    program = f"import torch, ampwatch; ampwatch.monitor(torch.nn.Linear(2, 2), level={level!r}, serve=False)"
    loaded = loaded_by(program)

    assert ("torch.utils.flop_counter" in loaded) is counts_ops
    assert counts_ops or "triton" not in loaded


@pytest.mark.parametrize("name", ["monitor", "inject", "LossScaler"])
def test_a_name_that_needs_torch_says_so_where_there_is_none(name: str) -> None:
    """What was expected, what was found and what to do; for ``except ImportError`` as well."""
    code = (
        "import sys; sys.modules['torch'] = None; import ampwatch\n"
        f"try: ampwatch.{name}(None)\nexcept ImportError as error: print(error, error.name)"
    )
    ended = python("-c", code)

    assert ended.stdout == (
        f"ampwatch.{name}: expected torch in {sys.executable}, got none; run the Python that"
        " trains, or pip install torch torch\n"
    )


def test_errors_and_records_can_be_had_without_torch() -> None:
    """A program that only catches errors or reads findings does not pay for torch."""
    assert "torch" not in loaded_by("import ampwatch; ampwatch.SettingsError, ampwatch.Finding")


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

    assert sorted([*seen, "__version__"]) == dir(ampwatch)
    assert set(ampwatch.__all__) <= set(dir(ampwatch))
    for name, module in seen.items():
        assert getattr(import_module(module or ""), name) is getattr(ampwatch, name)


def test_the_help_of_the_package_is_about_the_package() -> None:
    """What str, int and Exception hand down to the other public names would be two thousand lines."""
    shown = pydoc.plain(pydoc.render_doc(ampwatch))

    assert len(shown.splitlines()) < 400
    assert {"Finding", "LossScaler", "StopTraining", *ampwatch.__all__} - {"__version__"} <= set(
        re.findall(r"\w+", shown)
    )
    assert "with_traceback" not in shown


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names() -> None:
    """``hasattr`` works, and a slip is answered with what there is."""
    assert not hasattr(ampwatch, "watch")
    with pytest.raises(AttributeError, match=r"'watch'; it has .*monitor"):
        ampwatch.watch  # noqa: B018 - reading it is the test


def test_the_module_does_not_hide_the_function() -> None:
    """``ampwatch.monitor`` is the function, whatever was imported before."""
    import_module("ampwatch.training.monitor")

    assert callable(ampwatch.monitor)


@pytest.mark.parametrize(
    ("set_up", "said"),
    [
        ("", "ampwatch: the 1st\nampwatch: the 2nd\nampwatch CRITICAL run gpt\n"),
        ("log.basicConfig(format='%(name)s|%(message)s')",
         "ampwatch|the 1st\nampwatch.guard|the 2nd\nampwatch|ampwatch CRITICAL run gpt\n"),
        ("log.getLogger('ampwatch').addHandler(log.NullHandler())", ""),
        ("log.getLogger('ampwatch').setLevel(log.ERROR)", "ampwatch CRITICAL run gpt\n"),
        ("log.lastResort = None", ""),
    ],
    ids=["nothing", "the root", "a handler", "a level", "silence"],
)  # fmt: skip
def test_a_warning_without_logging_says_whose_it_is(set_up: str, said: str) -> None:
    """Once, whatever it says; what a program has set up gets the words as they are, and alone."""
    code = f"""
import logging as log, ampwatch
{set_up}
ours = log.getLogger("ampwatch")
ours.warning("the %s", "1st")
log.getLogger("ampwatch.guard").warning("the 2nd")
ours.error("ampwatch CRITICAL run gpt")
ours.info("watching")
log.raiseExceptions = False
ours.warning("%d", "no number")
"""
    ended = python("-c", code)

    assert ended.stderr == said
