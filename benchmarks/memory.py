"""Cost of watching in memory: by part and level, by parameter tensors, over a long run, on a device.

    python benchmarks/memory.py                    some ten minutes
    python benchmarks/memory.py --parts            only by part and level
    python benchmarks/memory.py --device cuda      the same on a GPU, with the memory of the device
    python benchmarks/memory.py --json FILE        keep the numbers

Each number comes from a process of its own, bare and watched. How to read it: README.md in
this folder.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

import torch
from companions import Ampwatch, Companion
from conditions import kept, own_places, write
from turns import Stopwatch
from workloads import WORKLOADS, Training, many_parameters

from ampwatch.training.iteration.ledger import ROW_WIDTH
from ampwatch.training.kernels.rows import ROW_BYTES
from ampwatch.training.memory import limit_of, pinned
from ampwatch.training.model.names import Names
from ampwatch.training.sensors.ranges.updates import MAX_ELEMENTS, MAX_TOGETHER, sample_of
from ampwatch.training.session import READBACK_SLOTS, _device_rows
from ampwatch.training.transfer.measuring import SLABS, SLABS_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from workloads import Workload

PARAMETERS = (1000, 3000)
"""Parameter tensors of the two models."""

LEVELS = ("light", "standard", "deep")
WATCHED = ("gpt", "mlp", *PARAMETERS)
"""What is watched at each level; but at deep, where a step takes seconds, no model of so many
parameters."""

WARM_UP_STEPS = 10
SETTLE_STEPS = 100
"""Steps after which all sensors have had their turn more than once."""

CURVE_EVERY = 1000
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
FLOAT_BYTES = 4


def resident_kib() -> int:
    """Return the resident memory of this process, the ring included. Unit: KiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_KIB


def device_kib() -> tuple[int, int]:
    """Return the memory in use on the CUDA device, and the pinned memory. Unit: KiB."""
    if not torch.cuda.is_initialized():
        return 0, 0
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return torch.cuda.memory_allocated() // 1024, pinned // 1024


def added(workload: Workload, device: str, companion: Companion) -> dict[str, float]:
    """Train a while bare, then accompanied, and return by how much the memory grew.

    With what the account of ampwatch says that it holds, by part. Unit: KiB.
    """
    torch.set_num_threads(1)
    training = Training(workload, device)
    for _ in range(WARM_UP_STEPS):
        training.step()
    gc.collect()
    before, device_before = resident_kib(), device_kib()
    companion.attach(training, Stopwatch())
    attached = peak = resident_kib()
    for _ in range(SETTLE_STEPS):
        training.step()
        peak = max(peak, resident_kib())
    gc.collect()
    on_device, pinned = (now - then for now, then in zip(device_kib(), device_before, strict=True))
    settled = resident_kib()
    parts = held_kib(companion) if isinstance(companion, Ampwatch) else {}
    companion.detach()
    return parts | {
        "attached_kib": attached - before,
        "settled_kib": settled - before,
        "peak_kib": peak - before,
        "device_kib": on_device,
        "pinned_kib": pinned,
    }


def held_kib(companion: Ampwatch) -> dict[str, float]:
    """Return what a companion says that it holds, by part and place, and its limit. Unit: KiB."""
    memory = companion._watch._session._context.memory
    return {
        f"{part} on {place}": nbytes / 1024
        for part, held in memory.held().items()
        for place, nbytes in zip(held._fields, held, strict=True)
        if nbytes
    }


def curve(workload: Workload, device: str, companion: Companion, steps: int) -> list[int]:
    """Train accompanied for a long time and return the resident memory on the way."""
    torch.set_num_threads(1)
    training = Training(workload, device)
    companion.attach(training, Stopwatch())
    found = []
    for step in range(1, steps + 1):
        training.step()
        if step % CURVE_EVERY == 0:
            found.append(resident_kib())
    companion.detach()
    return found


def slope(found: list[int]) -> float:
    """Return the growth in the second half of a curve. Unit: KiB per 1000 steps."""
    half = found[len(found) // 2 :]
    return linear_regression(range(len(half)), half).slope * 1000 / CURVE_EVERY


def computed(workload: Workload) -> dict[str, float]:
    """Return what the layout says that a model on a device needs. Unit: KiB.

    On the device slabs of rows and the snapshot of some elements of each parameter that is kept;
    in pinned memory slabs and the values of iterations. Four more copies come and go in an
    iteration that looks at updates; the table of what to measure is small beside them.
    """
    model = workload.model()  # the names hold it weakly
    fitting = pinned(int(SLABS_SHARE * limit_of(model.parameters(), 0)) // SLABS + 1) // 2
    slab = min(_device_rows(Names([model])) * ROW_BYTES, fitting)
    parameters = list(model.parameters())
    most = min(MAX_ELEMENTS, MAX_TOGETHER // len(parameters))
    samples = [sample_of(parameter, most) for parameter in parameters]
    snapshot = sum(FLOAT_BYTES * sample.numel() for sample in samples if sample is not None)
    values = READBACK_SLOTS * ROW_WIDTH * FLOAT_BYTES
    on_device, on_host = SLABS * slab + snapshot, SLABS * pinned(slab) + values
    return {"device_kib": on_device / 1024, "pinned_kib": on_host / 1024}


def in_own_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``work`` returns in a fresh process.

    Raises:
        EOFError: If it died; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _send(connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(work(*arguments))


def by_part(device: str) -> list[dict[str, Any]]:
    """Measure what is held at each level, and print it as it comes."""
    results: list[dict[str, Any]] = []
    print("| training | level | after monitor() | after 100 steps | peak | in the account |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    with own_places():
        for name in WATCHED:
            for level in LEVELS[: 3 if isinstance(name, str) else 2]:
                of = Ampwatch(level)
                found = in_own_process(_added_to, name, device, of)
                results.append({"training": name, "level": level, **found})
                sizes = [_mib(found[f"{when}_kib"]) for when in ("attached", "settled", "peak")]
                parts = [f"{part} {_mib(kib)}" for part, kib in found.items() if " on " in part]
                print(
                    f"| {name} | {level} | {' | '.join(sizes)} | {', '.join(parts)} |", flush=True
                )
    return results


def measure(device: str, steps: int) -> list[dict[str, Any]]:
    """Measure everything, and print it as it comes."""
    companions = {"bare": Companion(), "watched": Ampwatch("standard")}
    results: list[dict[str, Any]] = []
    with own_places():
        for number in PARAMETERS:
            found = {
                variant: in_own_process(_added_to, number, device, companion)
                for variant, companion in companions.items()
            }
            by_layout = computed(many_parameters(number))
            results.append({"parameters": number, **found, "computed": by_layout})
        print(table(results, device))
        curves = {
            variant: in_own_process(_micro_curve, device, companion, steps)
            for variant, companion in companions.items()
        }
        slopes = {variant: slope(found) for variant, found in curves.items()}
        results.append({"curves_kib": curves, "slopes_kib_per_1000_steps": slopes})
        print(f"\n{table_of_curves(curves, slopes)}")
    return results


def _added_to(name: int | str, device: str, companion: Companion) -> dict[str, float]:
    workload = many_parameters(name) if isinstance(name, int) else WORKLOADS[device][name]
    return added(workload, device, companion)


def _micro_curve(device: str, companion: Companion, steps: int) -> list[int]:
    return curve(WORKLOADS[device]["micro"], device, companion, steps)


def table(results: list[dict[str, Any]], device: str) -> str:
    """Return what was added, and what each 1000 parameters of it are, as a Markdown table."""
    heads = ["parameters", "bare", "after monitor()", "after 100 steps", "peak"]
    heads += ["on a device, computed", "pinned, computed", "both, measured"]
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for r in results:
        watched, layout = r["watched"], r["computed"]
        bare = r["bare"]["settled_kib"]
        measured = (
            f"{_mib(watched['device_kib'])} and {_mib(watched['pinned_kib'])}"
            if device == "cuda"
            else "no device"
        )
        cells = [str(r["parameters"]), _mib(bare)]
        cells += [_mib(watched[f"{when}_kib"]) for when in ("attached", "settled", "peak")]
        cells += [_mib(layout["device_kib"]), _mib(layout["pinned_kib"]), measured]
        lines.append(f"| {' | '.join(cells)} |")
    host, on_device, pinned = (
        _per_thousand(results, *of)
        for of in (
            ("watched", "settled_kib"),
            ("computed", "device_kib"),
            ("computed", "pinned_kib"),
        )
    )
    lines.append(
        f"\nfor every 1000 parameters {_mib(host)} of host memory; with the model on a device,"
        f" computed, {_mib(on_device)} there and {_mib(pinned)} pinned"
    )
    return "\n".join(lines)


def _per_thousand(results: list[dict[str, Any]], kind: str, name: str) -> float:
    few, many = results
    parameters: int = many["parameters"] - few["parameters"]
    return float(many[kind][name] - few[kind][name]) * 1000 / parameters


def table_of_curves(curves: dict[str, list[int]], slopes: dict[str, float]) -> str:
    """Return the resident memory over the steps as a Markdown table, and its slope."""
    lines = [f"| steps | {' | '.join(curves)} |", f"| ---: |{' ---: |' * len(curves)}"]
    for number, values in enumerate(zip(*curves.values(), strict=True), 1):
        cells = [str(number * CURVE_EVERY), *(_mib(v) for v in values)]
        lines.append(f"| {' | '.join(cells)} |")
    words = (f"{name} {value:+.1f} KiB" for name, value in slopes.items())
    lines.append(f"\ngrowth per 1000 steps in the second half: {', '.join(words)}")
    return "\n".join(lines)


def _mib(kib: float) -> str:
    return f"{kib / 1024:.2f} MiB"


def main() -> None:
    """Measure, and keep the numbers if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(WORKLOADS), default="cpu")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the long run")
    parser.add_argument("--parts", action="store_true", help="only by part and level")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    if args.steps < 4 * CURVE_EVERY:
        parser.error(f"expected {4 * CURVE_EVERY} steps or more, got {args.steps}")
    results = by_part(args.device)
    if not args.parts:
        results += measure(args.device, args.steps)
    measured = kept(results, args.device, steps=args.steps)
    print(f"\n{measured['machine']}\n{measured['versions']}")
    if args.json:
        write(args.json, measured)


if __name__ == "__main__":
    main()
