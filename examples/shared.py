"""What the examples share: their command line, their data, and their last words."""

from __future__ import annotations

import argparse
import json
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_breast_cancer, load_digits

if TYPE_CHECKING:
    import ampwatch


def parser(description: str | None, *, steps: int, remedy: str = "") -> argparse.ArgumentParser:
    """Return the command line of an example.

    Args:
        description: Docstring of the example.
        steps: How many it takes by default.
        remedy: What ``--fixed`` changes; empty for an example without a mistake.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=steps, help="optimizer steps (%(default)s)")
    options.add_argument(
        "--device",
        type=torch.device,
        default=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        help="where to train (%(default)s)",
    )
    options.add_argument("--page", action="store_true", help="serve the built-in page meanwhile")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the findings to FILE")
    if remedy:
        options.add_argument("--fixed", action="store_true", help=remedy)
    return options


def conclude(file: Path | None, *watches: ampwatch.Monitor) -> None:
    """Print the report of each training; write their findings to a file if there is to be one."""
    for watch in watches:
        print(watch.report())
    if file is not None:
        findings = [asdict(f) | {"advice": f.advice} for watch in watches for f in watch.findings]
        file.write_text(json.dumps(findings))


def digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1797 handwritten digits, shuffled.

    Returns:
        Images, shape (N, 1, 8, 8), from 0 to 1, and labels, shape (N,), from 0 to 9.
    """
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    return images.to(device), torch.tensor(data.target)[order].to(device)


def tumours(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 569 tumours: 30 measures of each, standardised, and whether it is benign.

    Returns:
        Measures, shape (N, 30), and answers, shape (N, 1), 0 or 1.
    """
    data = load_breast_cancer()
    measures = torch.tensor(data.data, dtype=torch.float32)
    measures = (measures - measures.mean(0)) / measures.std(0)
    answers = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1)
    return measures.to(device), answers.to(device)


def text(device: torch.device) -> torch.Tensor:
    """Return a million ASCII characters of Python's standard library, shape (N,)."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = b"".join(file.read_bytes() for file in files)[:1_000_000]
    return torch.tensor(list(source), device=device).clamp(max=127)


def batch(step: int, size: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows of this step, starting over where the data ends."""
    rows = torch.arange(step * size, (step + 1) * size, device=tensors[0].device)
    return [tensor[rows % len(tensor)] for tensor in tensors]
