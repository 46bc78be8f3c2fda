"""What it costs on a device: memory, bandwidth, steps. Figures, and nothing is red for one."""

from __future__ import annotations

import gc
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from companions import Ampwatch, Companion
from conditions import own_places
from overhead import BARE, CONTROL, WATCHED, summarise
from torch import nn
from turns import OPENING_TURN, Plan, spread, take_turns

import ampwatch
from ampwatch.training.iteration.governor import OPENING
from ampwatch.training.kernels.rows import ROW_WORDS
from benchmarks.gpu.checks import kernel_of
from benchmarks.gpu.trainings import TINY, VARIANTS, Found, Gpt2Training, Size

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
PIECES = 300
"""Tensors that the elements are spread over."""


def _done(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class _Masked(nn.Module):
    """A layer with a mask that is stored once and read many times, as attention has them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, features)
        self.register_buffer("mask", torch.zeros(1, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, D) to (B, D)."""
        return self.layer(x) + self.mask.expand(x.shape[0], -1)


def memory(device: str, *, tiny: bool) -> Found:
    """Train bare and at each level, and compare the peaks, set-up and the first steps."""
    features, batch = (16, 4) if tiny else (2048, 16384)
    found = Found()
    bare = 0.0
    for level in ("bare", "light", "standard", "deep"):
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (_Masked(features), nn.GELU())]
        model = nn.Sequential(*layers).to(device)
        x = torch.randn(batch, features, device=device)
        row = _peak(model, x, device, level, steps=2 if tiny else OPENING + 48)
        bare = row["peak MiB"] if level == "bare" else bare
        row["steps add MiB"] = row["peak MiB"] - bare - row["set-up MiB"]
        found.rows.append(row)
        del model, x
        gc.collect()
    found.said = f"deep adds {found.rows[-1]['steps add MiB']:.0f} MiB to the peak of the steps"
    return found


def _peak(model: nn.Module, x: torch.Tensor, device: str, level: str, steps: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    def step() -> float:
        began = time.perf_counter()
        with torch.autocast(device, dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        _done(device)
        return 1e3 * (time.perf_counter() - began)

    for _ in range(3):
        step()
    on_gpu = device == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    began = time.perf_counter()
    watch = None if level == "bare" else ampwatch.monitor(model, scaler, level=level, serve=False)
    _done(device)
    seconds = time.perf_counter() - began
    after = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = [step() for _ in range(steps)]
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    if watch is not None:
        watch.close()
    return {
        "level": level,
        "monitor() s": seconds,
        "set-up MiB": (after - before) / MIB,
        "peak MiB": (peak - before) / MIB,
        "first step ms": times[0],
        "worst ms": max(times),
        "median of the last ms": median(times[len(times) // 2 :]),
    }


def bandwidth(device: str, *, tiny: bool) -> Found:
    """Time the kernel and a copy of the same tensors in turn; the copy moves twice the bytes."""
    kernel = kernel_of(device)
    found = Found()
    sizes = (2**12,) if tiny else (2**25, 2**28, 2**31)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for numel in sizes:
            if device == "cuda" and 4 * numel * dtype.itemsize > torch.cuda.mem_get_info()[0]:
                continue
            data = (1e-5 * torch.randn(numel, device=device, dtype=dtype)).contiguous()
            pieces = list(data.split(-(-numel // PIECES // 8) * 8))
            rows = torch.empty((len(pieces), ROW_WORDS), dtype=torch.int32, device=device)
            copy = torch.empty_like(data)
            seconds = _in_turn(
                {
                    "kernel": partial(kernel.measure, pieces, rows),
                    "copy": partial(copy.copy_, data),
                },
                device,
                rounds=2 if tiny else 15,
            )
            read = data.nbytes / seconds["kernel"] / 1e9
            copied = 2 * data.nbytes / seconds["copy"] / 1e9
            found.rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "elements": f"{numel:,}",
                    "kernel GB/s": read,
                    "copy GB/s": copied,
                    "kernel / copy": f"{read / copied:.0%}",
                }
            )
            del data, pieces, copy
    found.said = f"{found.rows[-1]['kernel / copy']} of a copy, {found.rows[-1]['dtype']}, largest"
    return found


def _in_turn(calls: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Return the median time of each call. Unit: s."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, call in calls.items():
            seconds = _seconds(call, device)
            if number >= 3:  # memory, caches, compilation
                taken[name].append(seconds)
    return {name: median(times) for name, times in taken.items()}


def _seconds(call: Callable[[], Any], device: str) -> float:
    if device != "cuda":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def overhead(device: str, *, tiny: bool, variant: str) -> Found:
    """Let two bare trainings and a watched one take turns, and compare their steps."""
    training = partial(Gpt2Training, variant=VARIANTS[variant], size=TINY if tiny else Size())
    companions = {BARE: Companion(), CONTROL: Companion(), WATCHED: Ampwatch("standard")}
    opening = 2 * OPENING_TURN if tiny else OPENING
    plan = Plan(rounds=2 if tiny else 16, steps=2 if tiny else 5, opening=opening)
    with own_places():
        found = summarise(variant, take_turns(training, device, companions, plan))
    noise, watched = (found["variants"][v] for v in (CONTROL, WATCHED))
    began, after, bare_ms = watched["opening"], watched["after"], found["bare_ms"]
    row = {
        "training": variant,
        "bare step ms": bare_ms,
        "noise": spread(noise["after"], "median"),
        "watched / bare": spread(after, "median"),
        "all steps": after["wall_ratio"],
        "worst step": after["worst_ms"] / bare_ms,
        "worst bare": after["worst_bare_ms"] / bare_ms,
        "opening": began["wall_ratio"],
        "worst of the opening": began["worst_ms"] / bare_ms,
        "own account": f"{after['own_us'] / (1e3 * bare_ms):.2%}",
    }
    return Found(f"x {after['median_ratio']:.4f}, worst step x {row['worst step']:.2f}", rows=[row])
