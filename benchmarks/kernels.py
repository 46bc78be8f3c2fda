"""How fast exponents are counted, beside the fastest that reads the same tensors: their sums.

    python benchmarks/kernels.py                         float32 in host memory
    python benchmarks/kernels.py --dtype bfloat16        another dtype
    python benchmarks/kernels.py --values all            other distributions of magnitudes
    python benchmarks/kernels.py --device cuda           on a GPU
    python benchmarks/kernels.py --blocks                exponents and blocks beside exponents alone
    python benchmarks/kernels.py --json FILE             keep the numbers

How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from conditions import QUIET_ENVIRONMENT, kept, restart_in_quiet_environment, write

from ampwatch.numerics.blocks import PART, stretch_of
from ampwatch.numerics.encodings import DTYPES
from ampwatch.training.kernels import native
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.rows import BLOCK_DTYPES, BLOCK_ROW_WORDS, ROW_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.training.kernels.base import Kernel

FLOOR = "sum"
SAMPLED = 16
"""Stride of the subsampling variant."""

SMALL = 1024
"""Elements of the small tensors, which are half of them: biases, norms."""


class Case(NamedTuple):
    """A list of tensors: elements in all, and in how many tensors."""

    numel: int
    num_tensors: int


CASES = {
    "cpu": (Case(64_000, 1000), Case(10**6, 40), Case(10**7, 120), Case(5 * 10**7, 300)),
    "cuda": (Case(64_000, 1000), Case(10**7, 120), Case(10**8, 300), Case(10**9, 600)),
}

BLOCK_SIZES = (64, 1000, 2048, 4096, 8192, 16_384, 32_768, 65_536, 262_144, 10**6)
"""Elements of the tensors whose blocks are measured; of each size a list, so that calls count little."""

MAX_LIST = 64
"""Tensors of such a list, unless they have a million elements together before."""

VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    # normal: fresh samples of a standard normal distribution
    "gradients": lambda normal: 1e-5 * torch.exp(2 * normal) * (normal.frac().abs() > 0.01),
    "weights": lambda normal: 0.02 * normal,
    "wide": lambda normal: torch.exp(12 * normal),
    "constant": torch.ones_like,
    "infinite": lambda normal: torch.where(normal > 3, torch.inf, normal),
}
"""Contents of a tensor. Gradients are log-normal with a hundredth of zeros, as they often are."""


def tensors(case: Case, values: str, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return the tensors of a case: half of them small, the others of equal size."""
    if case.numel // case.num_tensors < SMALL:
        sizes = [case.numel // case.num_tensors] * case.num_tensors
    else:
        large = case.num_tensors // 2
        small = [SMALL] * (case.num_tensors - large)
        sizes = [*small, *[(case.numel - sum(small)) // large] * large]
    return [VALUES[values](torch.randn(n, device=device)).to(dtype) for n in sizes]


def kernels(device: str) -> list[Kernel]:
    """Return the kernels that there are on this machine."""
    if device == "cuda":
        from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415 - needs Triton

        return [TritonKernel()]
    compiled = native.load()
    return [EagerKernel()] if compiled is None else [compiled, EagerKernel()]


def contestants(
    pieces: Sequence[torch.Tensor], device: str, chosen: list[Kernel]
) -> dict[str, Callable[[], Any]]:
    """Return what is timed, each a call over the whole list."""
    rows = torch.empty((len(pieces), ROW_WORDS), dtype=torch.int32, device=device)
    calls: dict[str, Callable[[], Any]] = {FLOOR: lambda: [piece.sum() for piece in pieces]}
    for kernel in chosen:
        calls[kernel.name] = lambda kernel=kernel: kernel.measure(pieces, rows)
    if device == "cpu":
        stride = [SAMPLED] * len(pieces)
        kernel = chosen[0]
        calls[f"{kernel.name}, 1 in {SAMPLED}"] = lambda: kernel.measure(
            pieces, rows, stride=stride
        )
        for slow in (kernel for kernel in chosen if kernel.max_binned):
            apart = [-(-piece.numel() // slow.max_binned) for piece in pieces]
            calls[f"{slow.name}, as it is used"] = lambda slow=slow, apart=apart: slow.measure(
                pieces, rows, stride=apart
            )
    return calls


def stopwatch(device: str) -> Callable[[Callable[[], Any]], tuple[float, float]]:
    """Return what times a call: in all, and until the host has it behind it. Unit: s."""

    def on_host(call: Callable[[], Any]) -> tuple[float, float]:
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        return seconds, seconds

    def on_device(call: Callable[[], Any]) -> tuple[float, float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        host, _ = on_host(call)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3, host

    return on_device if device == "cuda" else on_host


def measure(case: Case, values: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all contestants in turn, in an order shuffled every round."""
    pieces = tensors(case, values, getattr(torch, args.dtype), args.device)
    calls = contestants(pieces, args.device, kernels(args.device))
    timed = stopwatch(args.device)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    order = list(calls)
    for name in order * 2:  # memory, caches, compilation
        timed(calls[name])
    for _ in range(args.rounds):
        random.shuffle(order)
        for name in order:
            taken[name].append(timed(calls[name]))
    floor = median(seconds for seconds, _ in taken[FLOOR])
    num_bytes = sum(piece.nbytes for piece in pieces)
    return [
        {
            "numel": case.numel,
            "num_tensors": len(pieces),
            "dtype": args.dtype,
            "values": values,
            "kernel": name,
            "median_us": 1e6 * median(seconds),
            "quartiles_us": [1e6 * quantiles(seconds, n=4)[i] for i in (0, 2)],
            "worst_us": 1e6 * max(seconds),
            "host_us": 1e6 * median(host),
            "gigabytes_per_second": num_bytes / median(seconds) / 1e9,
            "ratio": median(seconds) / floor,
        }
        for name, both in taken.items()
        for seconds, host in [zip(*both, strict=True)]
    ]


def measure_blocks(numel: int, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Time a call that measures exponents and blocks beside one that measures exponents, in pairs.

    Returns:
        Medians for one tensor, and the median and quartiles of the ratio of each pair.
    """
    number = max(1, min(MAX_LIST, 10**6 // numel))
    # Float16 would flush most of the gradients: as in a training, they are scaled.
    scale = 2.0**14 if dtype == "float16" else 1.0
    make = VALUES[args.values]
    wanted = getattr(torch, dtype)
    pieces = [
        (scale * make(torch.randn(numel, device=args.device))).to(wanted) for _ in range(number)
    ]
    rows, blocks = (
        torch.empty((number, words), dtype=torch.int32, device=args.device)
        for words in (ROW_WORDS, BLOCK_ROW_WORDS)
    )
    kernel = kernels(args.device)[0]
    calls = {
        "alone": lambda: kernel.measure(pieces, rows),
        "both": lambda: kernel.measure(pieces, rows, blocks=blocks),
    }
    timed = stopwatch(args.device)
    order = list(calls)
    for name in order * 2:
        timed(calls[name])
    rounds = []
    for _ in range(args.rounds * 5):  # a round is short
        random.shuffle(order)
        rounds.append({name: timed(calls[name])[0] for name in order})
    ratios = [pair["both"] / pair["alone"] for pair in rounds]
    low, middle, high = quantiles(ratios, n=4)
    return {
        "numel": numel,
        "num_tensors": number,
        "dtype": dtype,
        "values": args.values,
        "kernel": kernel.name,
        "measured": min(numel * PART // stretch_of(numel), numel),
        "alone_us": 1e6 * median(pair["alone"] for pair in rounds) / number,
        "both_us": 1e6 * median(pair["both"] for pair in rounds) / number,
        "ratio": middle,
        "quartiles": [low, high],
    }


def block_table(results: list[dict[str, Any]]) -> str:
    """Return what blocks cost as a Markdown table."""
    lines = [
        "| elements | of them in blocks | dtype | values | exponents | and blocks | ratio | quartiles |",
        "| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        low, high = r["quartiles"]
        lines.append(
            f"| {r['numel']:,} | {r['measured']:,} | {r['dtype']} | {r['values']}"
            f" | {r['alone_us']:.2f} us | {r['both_us']:.2f} us | {r['ratio']:.2f} | {low:.2f}-{high:.2f} |"
        )
    return "\n".join(lines)


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| elements | tensors | values | kernel | median | quartiles | worst | host | GB/s | / sum |",
        "| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        low, high = r["quartiles_us"]
        lines.append(
            f"| {r['numel']:,} | {r['num_tensors']} | {r['values']} | {r['kernel']}"
            f" | {r['median_us']:.0f} us | {low:.0f}-{high:.0f} | {r['worst_us']:.0f}"
            f" | {r['host_us']:.0f} | {r['gigabytes_per_second']:.1f} | {r['ratio']:.2f} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=sorted(CASES), default="cpu")
    add("--dtype", choices=[d for d in DTYPES if "float8" not in d], default="float32")
    add("--values", choices=[*VALUES, "all"], default="gradients")
    add("--largest", type=int, default=10**9, metavar="N", help="leave out longer lists")
    add(
        "--blocks", action="store_true", help="what blocks cost beside exponents, by size and dtype"
    )
    add("--rounds", type=int, default=30, help="timed calls of each kernel, at least 2")
    add("--json", type=Path, metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"expected --rounds of at least 2, got {args.rounds}")
    return args


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    args = arguments()
    restart_in_quiet_environment()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chosen = list(VALUES) if args.values == "all" else [args.values]
    if args.blocks:
        sizes = [numel for numel in BLOCK_SIZES if numel <= args.largest]
        results = []
        for args.values in chosen:
            results += [measure_blocks(numel, d, args) for d in BLOCK_DTYPES for numel in sizes]
    else:
        results = [
            result
            for case in CASES[args.device]
            if case.numel <= args.largest
            for values in chosen
            for result in measure(case, values, args)
        ]
    measured = kept(
        results, args.device, threads=1, rounds=args.rounds, environment=QUIET_ENVIRONMENT
    )
    shown = block_table(results) if args.blocks else table(results)
    print(f"{measured['machine']}\n{measured['versions']}\n\n{shown}")
    if args.json:
        write(args.json, measured)


if __name__ == "__main__":
    main()
