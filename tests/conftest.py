"""Every test has places of its own: no test touches the rings or the daemon of a user."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import hypothesis
import pytest

from tests.workshop.examples import run_example  # noqa: F401 - a fixture of all folders
from tests.workshop.nursery import nursery  # noqa: F401 - a fixture of all folders
from tests.workshop.times import Times

ROTATION = 4
"""One in so many tests that are marked ``rotating`` is run at a commit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say in which order tests are run, and where to keep what they took."""
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in another order, by file")
    parser.addoption("--times", type=Path, help="add a line of JSON: seconds by directory, counts")


def pytest_configure(config: pytest.Config) -> None:
    """Add up times, have no test fail for being slow, and Ctrl-C end what tests start.

    A shell that runs the tests in the background has them ignore Ctrl-C, and what they start would
    inherit that.
    """
    # A worker of pytest-xdist has a part of the tests; the process that started it has all.
    times = None if hasattr(config, "workerinput") else config.getoption("times")
    config.pluginmanager.register(Times(config.getoption("markexpr"), times))
    too_slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile(
        "any speed",
        deadline=None,
        suppress_health_check=[too_slow],
        # At a commit the same examples each time; the night searches.
        derandomize=config.getoption("markexpr") == "not nightly",
    )
    hypothesis.settings.load_profile("any speed")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave three quarters of the rotating tests to the night; the quarter moves with the commit."""
    if seed := config.getoption("shuffle"):
        # Those of a file stay together, for they share what is set up for them.
        items.sort(key=lambda item: crc32(f"{seed} {item.nodeid}".encode()))
        items.sort(key=lambda item: crc32(f"{seed} {item.path}".encode()))
    command = ["git", "rev-list", "--count", "HEAD"]
    here = Path(__file__).parent
    commits = int(subprocess.run(command, cwd=here, capture_output=True, check=False).stdout or 0)
    for item in items:
        marker = item.get_closest_marker("rotating")
        if marker and (crc32(marker.kwargs.get("by", item.nodeid).encode()) + commits) % ROTATION:
            item.add_marker("nightly")


MIN_NEW_MODULES = 20
"""Modules that have been imported since, for which it is worth a pass to keep their objects from others."""

_num_frozen = 0
"""How many modules there were when objects were last kept from each pass over all objects."""


def pytest_collection_finish() -> None:
    """Keep modules and tests, some 400 000 objects, from each pass over all objects.

    The collector makes them, and so does the first step of each training, for the schedulers that live already.
    """
    _freeze()


def pytest_runtest_setup() -> None:
    """Keep what tests before have imported from each pass: parts of PyTorch are when they are first used."""
    if len(sys.modules) >= _num_frozen + MIN_NEW_MODULES:
        _freeze()


def _freeze() -> None:
    global _num_frozen  # noqa: PLW0603 - as the collector's own state
    gc.collect()
    gc.freeze()
    _num_frozen = len(sys.modules)


def pytest_sessionfinish() -> None:
    """Let the collector see everything again: what reports at the end may look for it."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def directory_of_all(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A directory that the workers of pytest-xdist share; each has one of its own below it."""
    own = tmp_path_factory.getbasetemp()
    # Not by the variable that names the worker: tests that a test starts inherit it, and are none.
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every directory and the port of ampwatch at this test."""
    for name in ("runtime", "rings"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("AMPWATCH_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("AMPWATCH_PORT", "0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture(autouse=True)
def first_fit() -> None:
    """Have each test be the first of its process that fits its program."""
    # By its name: the half of the host is tested without torch.
    programs = sys.modules.get("ampwatch.training.iteration.programs")
    if programs is not None:
        programs.forget()


@pytest.fixture(autouse=True)
def no_autocast_is_left_open() -> Iterator[None]:
    """Name the test that leaves a region open: in others after it, no cast of a weight would be forgotten."""
    yield
    if torch := sys.modules.get("torch"):
        level = torch.autocast_increment_nesting() - 1
        for _ in range(level + 1):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        is_on = torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)  # noqa: FBT003 - PyTorch's
        assert (level, is_on) == (0, False), "expected no region of autocast to be left open"


@pytest.fixture
def no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a read-only root, and no directory that is named instead."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    for variable in ("AMPWATCH_RUNTIME_DIR", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, so that two runs can be compared bit for bit."""
    import torch  # noqa: PLC0415 - the host half is tested without it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def able_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings must not depend on the machine: this one has instructions for every dtype."""
    from ampwatch.numerics.units.ops import HALF_DTYPES  # noqa: PLC0415 - like the next
    from ampwatch.training.model import machine  # noqa: PLC0415 - needs torch

    monkeypatch.setattr(machine, "cpu_dtypes", lambda _=None: HALF_DTYPES)


_backends: list[object] = []
"""Held for good: what torch 2.6 has compiled knows its backend by address alone (pytorch/pytorch#155057),
and compares it with the next one when the same code is called again."""


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Whatever tests before have compiled: ampwatch keeps off what PyTorch says was compiled."""
    if frames := sys.modules.get("torch._dynamo.eval_frame"):
        backends = frames.__dict__.get("cached_backends", {})
        _backends.extend(backends.values())
        backends.clear()
    if counts := sys.modules.get("torch._dynamo.utils"):
        counts.__dict__["counters"].clear()
