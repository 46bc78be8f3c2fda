"""Is it right on a device: values, syncs, captures, attribution, names of kernels, the tests."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sysconfig
import warnings
from collections import Counter
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import ampwatch
from ampwatch.numerics.encodings import DTYPES
from ampwatch.training.kernels import native
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.rows import ROW_WORDS, decode
from ampwatch.training.sensors.window.events import device_work
from ampwatch.training.sensors.window.recording import Recording
from benchmarks.gpu.steps import ROOT
from benchmarks.gpu.trainings import TINY, Found, Gpt2Training, Size, Variant
from tests.gpu.syncs import sync_debug_mode
from tests.training.kernels.reference import histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.training.kernels.base import Kernel

GUARD = 77
"""Word of a row that no kernel may touch."""

MAX_NAMES = 40


def machine(device: str, *, tiny: bool) -> Found:  # noqa: ARG001 - as every step
    """Say what is there, and what Triton lacks."""
    if device == "cuda" and not torch.cuda.is_available():
        return Found(reds=[f"torch {torch.__version__} sees no CUDA device"])
    found = {"gpu": torch.cuda.get_device_name() if device == "cuda" else "none (rehearsal)"}
    found |= {"driver": _driver(), "cuda": torch.version.cuda or torch.version.hip or ""}
    found |= {name: _version(name) for name in ("torch", "triton", "msgspec", "prometheus-client")}
    compilers = [name for name in (os.environ.get("CC"), "gcc", "clang") if name]
    compiler = next((path for name in compilers if (path := shutil.which(name))), "")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    found |= {"python": platform.python_version(), "ampwatch": ampwatch.__version__}
    found |= {"compiler": compiler, "Python.h": str(header) if header.exists() else ""}
    reds = []
    if device == "cuda" and not (compiler and header.exists()):
        reds.append("Triton needs a C compiler and Python.h to launch anything; one is missing")
    return Found(f"{found['gpu']}, driver {found['driver']}, torch {found['torch']}", reds, [found])


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.splitlines()[0] if done.stdout else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def kernel_of(device: str) -> Kernel:
    """Return the kernel for a device."""
    if device == "cuda":
        from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415 - needs Triton

        return TritonKernel()
    return native.load() or EagerKernel()


def values(device: str, *, tiny: bool) -> Found:
    """Count exponents on the device, and hold every row against the reference on the host."""
    kernel = kernel_of(device)
    found = Found()
    for name in DTYPES:
        pieces = _pieces(getattr(torch, name), device, 1000 if tiny else 1_000_003)
        rows = torch.full((len(pieces) + 1, ROW_WORDS), GUARD, dtype=torch.int32, device=device)
        kernel.measure(pieces, rows)
        host = rows.cpu()
        wrong = [
            number
            for number, (piece, row) in enumerate(zip(pieces, host, strict=False))
            if decode(row.numpy().tobytes(), name, piece.numel()) != histogram(piece.cpu())
        ]
        if wrong:
            found.reds.append(
                f"{name}: {len(wrong)} of {len(pieces)} tensors, the first {wrong[0]}"
            )
        if not host[-1].eq(GUARD).all():
            found.reds.append(f"{name}: something was written behind the last row")
        elements = sum(piece.numel() for piece in pieces)
        found.rows.append(
            {"dtype": name, "tensors": len(pieces), "elements": elements, "wrong": len(wrong)}
        )
    found.said = f"{len(DTYPES)} dtypes as in the reference"
    return found


def _pieces(dtype: torch.dtype, device: str, numel: int) -> list[torch.Tensor]:
    """Return tensors of every kind: wide, of zeros and infinities, unaligned, short and empty."""
    normal = torch.randn(numel, device=device)
    wide = torch.ldexp(normal, torch.randint(-60, 60, normal.shape, device=device))
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-24], device=device)
    long = [x.to(dtype) for x in (normal * 1e-3, wide, normal.relu(), special)]
    return [*long, long[1][3:], long[0][:0], *long[1][: 97 * 200].split(97)]


class Small:
    """A float16 training of some layers, as short as a step can be."""

    def __init__(self, device: str, flavour: str) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **{flavour: True})
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        self._batch = torch.randn(32, 64, device=device)
        self._device = device

    def step(self, factor: float = 1.0) -> None:
        """Take one step, which is skipped if ``factor`` is infinite."""
        with torch.autocast(self._device, dtype=torch.float16):
            loss = self.model(self._batch).float().square().mean() * factor
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def syncs(device: str, *, tiny: bool) -> Found:
    """Count what waits for the device in a step, bare and at each level; and let it raise."""
    found = Found("none is added at any level")
    for flavour in ("fused", "foreach"):
        bare = _waits(Small(device, flavour), "bare", device, tiny=tiny)
        for level in ("light", "standard", "deep"):
            watched = _waits(Small(device, flavour), level, device, tiny=tiny)
            added = watched - bare
            found.rows.append(
                {
                    "optimizer": flavour,
                    "level": level,
                    "bare": bare.total(),
                    "watched": watched.total(),
                    "where": ", ".join(added),
                }
            )
            if added:
                found.reds.append(f"{flavour}, {level}: {added.total()} at {', '.join(added)}")
    for level in ("light", "standard", "deep"):
        training = Small(device, "fused")
        with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
            _steps(training, "error", device, tiny=tiny)
        found.reds += [f"{level}, raising: {line}" for line in _off(watch)]
    return found


def _waits(training: Small, level: str, device: str, *, tiny: bool) -> Counter[str]:
    watch = (
        None
        if level == "bare"
        else ampwatch.monitor(training.model, training.scaler, level=level, serve=False)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _steps(training, "warn", device, tiny=tiny)
    if watch is not None:
        watch.close()
    return Counter(
        f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)
    )


def _steps(training: Small, mode: str, device: str, *, tiny: bool) -> None:
    training.step()  # compiles
    with sync_debug_mode(mode) if device == "cuda" else nullcontext():
        for number in range(4 if tiny else 48):
            training.step(math.inf if number % 12 == 2 else 1.0)


def _off(watch: ampwatch.Monitor) -> list[str]:
    return [line.strip() for line in watch.report().splitlines() if "switched off" in line]


def capture(device: str, *, tiny: bool, case: str) -> Found:
    """Capture a user's graph while it is watched; each case in a process of its own."""
    size = 16 if tiny else 64
    model = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 8)).to(device)
    options = {"fused": True, "capturable": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    scaler = torch.amp.GradScaler(device) if case == "graphed-scaled" else None
    batch = torch.randn(32, size, device=device)
    found = Found("the capture goes through")
    with ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False) as watch:
        try:
            if device != "cuda":
                _eagerly(model, optimizer, batch, case)
            elif case.startswith("graphed"):
                torch.cuda.make_graphed_callables(model, (batch,))(batch).sum().backward()
            else:
                _whole(model, optimizer, batch, case)
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - what was broken is the answer
            found.reds.append(f"{type(error).__name__}: {error}"[:300])
    found.reds += _off(watch)
    return found


def _eagerly(model: nn.Module, optimizer: Any, batch: torch.Tensor, case: str) -> None:
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()
    if case == "eager-then-whole":  # an iteration is open when the capture begins
        model(batch).square().mean().backward()


def _whole(model: nn.Module, optimizer: Any, batch: torch.Tensor, case: str) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _eagerly(model, optimizer, batch, case)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(batch).square().mean().backward()
        optimizer.step()
    graph.replay()
    graph.replay()


def recorded(step: Callable[[], Any], device: str) -> Recording:
    """Record two steps, after one in which the profiler warms up."""
    recording = Recording(torch.device("cuda", 0) if device == "cuda" else None)
    recording.prepare()
    step()
    recording.wait()
    recording.begin()
    step()
    step()
    recording.wait()
    recording.close()
    return recording


def attribution(device: str, *, tiny: bool) -> Found:
    """Hold the op of each kernel against PyTorch's own, and say how far the numbers overlap."""
    training = Gpt2Training(device, Variant(), TINY if tiny else Size(layers=4))
    for _ in range(3):
        training.step()
    found = Found()
    for window in range(3):
        recording = recorded(training.step, device)
        events = recording.events
        work = device_work(events, 0)
        ours, theirs = Counter[str](), Counter[str]()
        for launch, spent in work.kernels.items():
            ours[launch.op] += spent.calls
        for event in recording.profile.function_events:
            theirs[event.name] += len(event.kernels)
        wrong = Counter({op: n for op, n in (ours - theirs).items() if op})
        calls = {e.correlation_id() for e in events if e.linked_correlation_id()}
        ops = {e.correlation_id() for e in events if not e.linked_correlation_id()}
        found.rows.append(
            {
                "window": window,
                "runs": work.runs,
                "op known": work.linked,
                "launches": work.launches,
                "numbers shared": len(calls & ops),
                "wrong": wrong.total(),
            }
        )
        found.reds += [f"{n} kernels too many are credited to {op}" for op, n in wrong.items()]
        if device == "cuda" and not work.is_whole:
            found.reds.append(f"window {window} counts as one that has lost data")
    known, runs = (sum(row[key] for row in found.rows) for key in ("op known", "runs"))
    found.said = f"{known} of {runs} runs have an op, and none one that PyTorch does not give them"
    return found


def names(device: str, *, tiny: bool) -> Found:
    """List the kernels of a GPT and of a convolutional net that no rule knows."""
    from workloads import WORKLOADS, Training  # noqa: PLC0415 - the other steps do without

    from ampwatch.training.sensors.window.totals import kernels_found  # noqa: PLC0415 - msgspec

    size = TINY if tiny else Size(layers=2)
    steps: list[Callable[[], None]] = [
        Gpt2Training(device, Variant(dtype), size).step for dtype in (torch.bfloat16, torch.float16)
    ]
    if not tiny:
        steps.append(Training(WORKLOADS[device]["cnn"], device).step)
    rows: list[Any] = []
    for step in steps:
        step()
        work = device_work(recorded(step, device).events, 0)
        capability = torch.cuda.get_device_capability() if device == "cuda" else None
        rows += kernels_found(
            work.kernels, busy_ns=work.busy_ns, capability=capability, tf32_allowed=False
        ).rows
    unknown = sorted((r for r in rows if r.unit == "unknown"), key=lambda r: -r.nanoseconds)
    total = sum(row.nanoseconds for row in rows) or 1
    share = sum(row.nanoseconds for row in unknown) / total
    return Found(
        f"{len(unknown)} of {len(rows)} kernels unknown, {share:.1%} of the time",
        rows=[
            {"share": f"{row.nanoseconds / total:.2%}", "op": row.op, "kernel": f"`{row.name}`"}
            for row in unknown[:MAX_NAMES]
        ],
    )


class _Failures:
    """Plugin of pytest that keeps what has failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        self.passed += report.when == "call" and report.passed


def tests(device: str, *, tiny: bool) -> Found:  # noqa: ARG001 - as every step
    """Run tests/gpu in this process, without options of plugins that may not be there."""
    import pytest  # noqa: PLC0415 - may not be there

    failures = _Failures()
    options: Sequence[str] = ["-o", "addopts=", "-o", "filterwarnings=default", "-q", "--tb=short"]
    more = ["--collect-only"] if tiny else []
    place = ROOT / "tests" / "gpu"
    # What needs no device is not what this machine is for.
    more += ["-p", "no:cacheprovider", f"--ignore={place / 'test_without_a_device.py'}"]
    code = pytest.main([str(place), *options, *more], plugins=[failures])
    alone = "python3 -m pytest -o addopts= -o filterwarnings=default"
    reds = [f"`{alone} {test}`" for test in dict.fromkeys(failures.failed)]
    if code and not reds:
        reds.append(f"pytest ended with {int(code)}")
    return Found(f"{failures.passed} passed", reds)
