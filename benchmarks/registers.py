"""What the kernel for GPUs takes of a GPU, by what Triton makes of it. No GPU is needed or used.

    python benchmarks/registers.py                                  every target and dtype; a minute
    python benchmarks/registers.py --targets sm_90 --dtypes float32
    python benchmarks/registers.py --json FILE                      keep the numbers

Wants Triton, and ampwatch as `make setup` installs it. How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from conditions import kept, version_of, write

from ampwatch.numerics.encodings import DTYPES
from tests.workshop.absent_gpus import TARGETS, compiled_for

REGISTERS = 65536
"""Registers of a multiprocessor, which a warp takes in eights for each thread. Source: CUDA C++
Programming Guide, 'Technical Specifications per Compute Capability'."""

ROCM_REGISTERS = 512
"""Registers for each lane of one of the four SIMD units of a compute unit of gfx942, which a wave
takes in eights. Source: LLVM, 'User Guide for AMDGPU Backend'."""

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", re.MULTILINE)
BRANCH = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")
IS_CONDITIONAL = re.compile(r"@!?U?P\d")
AMD_LINE = re.compile(r"^(\.LBB\w+):|^\t([vsgdb]\w*_\w+.*)$", re.MULTILINE)


def disassembled(cubin: bytes) -> tuple[str, str]:
    """Return the resources of a kernel and its machine code, as cuobjdump tells them.

    The program comes with Triton.
    """
    import triton  # noqa: PLC0415 - it is asked for after its cache has been set

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        resources, code = (
            subprocess.run(
                [program, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    return resources, code


def of_cuda(result: Any) -> dict[str, Any]:
    """Return what a kernel takes of a GPU of NVIDIA."""
    resources, code = disassembled(result.asm["cubin"])
    taken = {name: int(n) for name, n in re.findall(r"(REG|STACK):(\d+)", resources)}
    lines = [(int(address, 16), line) for address, line in INSTRUCTION.findall(code)]
    at = {address: number for number, (address, _) in enumerate(lines)}
    loops = [
        [line for _, line in lines[at[int(target[1], 16)] : number + 1]]
        for number, (address, line) in enumerate(lines)
        if (target := BRANCH.search(line)) and int(target[1], 16) < address
    ]
    threads = 32 * result.metadata.num_warps
    return {
        "registers": taken["REG"],
        "spilled_bytes": taken["STACK"],  # the kernel has no arrays, so nothing else is there
        "shared_bytes": result.metadata.shared,
        "instructions": len(lines),
        # Only the loop over what lies whole within a piece has loads without a condition.
        "per_element": per_element(loops, r"LDG\b", threads),
        "blocks": REGISTERS // (-(-taken["REG"] // 8) * 8 * threads),
    }


def of_rocm(result: Any) -> dict[str, Any]:
    """Return what a kernel takes of a GPU of AMD."""
    text = result.asm["amdgcn"]
    taken = {
        name: int(re.search(rf"\.{name}:\s+(\d+)", text)[1])  # type: ignore[index]
        for name in ("vgpr_count", "private_segment_fixed_size")
    }
    lines: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for label, line in AMD_LINE.findall(text):
        if label:
            labels[label] = len(lines)
            continue
        lines.append(line)
        target = line.split()[-1]
        if line.startswith(("s_cbranch", "s_branch")) and target in labels:
            loops.append(lines[labels[target] :])
    waves = min(8, ROCM_REGISTERS // (-(-taken["vgpr_count"] // 8) * 8))
    return {
        "registers": taken["vgpr_count"],
        "spilled_bytes": taken["private_segment_fixed_size"],
        "shared_bytes": result.metadata.shared,
        "instructions": len(lines),
        # A load with a condition is a branch around it.
        "per_element": per_element(
            [loop for loop in loops if not any("execz" in line for line in loop)],
            "global_load",
            64 * result.metadata.num_warps,
        ),
        "blocks": 4 * waves // result.metadata.num_warps,
    }


def per_element(loops: list[list[str]], load: str, threads: int) -> float | None:
    """Return the instructions of the loop over whole steps, for each element; ``None`` if unknown."""
    from ampwatch.training.kernels.fused_device import STEP  # noqa: PLC0415 - needs Triton

    is_load = re.compile(load)
    lengths = [
        len(loop)
        for loop in loops
        if any(is_load.search(line) and not IS_CONDITIONAL.match(line) for line in loop)
    ]
    return round(min(lengths) * threads / STEP.value, 2) if lengths else None


def measure(target: str, dtype: str) -> dict[str, Any]:
    """Compile the kernel for a dtype and a GPU that need not be there; return what it takes."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        begin = time.perf_counter()
        result = compiled_for(target, dtype)
        seconds = time.perf_counter() - begin
    numbers = of_rocm(result) if TARGETS[target][0] == "hip" else of_cuda(result)
    return {
        "triton": version_of("triton"),
        "target": target,
        "dtype": dtype,
        **numbers,
        "compiled_in_s": round(seconds, 2),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [f"| {' | '.join(results[0])} |", f"| {' | '.join('---' for _ in results[0])} |"]
    lines += [f"| {' | '.join(str(value) for value in result.values())} |" for result in results]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    add("--json", type=Path, metavar="FILE", help="write the numbers there")
    return parser.parse_args()


def main() -> None:
    """Compile, print a table, keep the numbers if asked to."""
    args = arguments()
    results = [measure(target, dtype) for dtype in args.dtypes for target in args.targets]
    found = kept(results, "none: compiled for GPUs that are not there, nothing was run", ["triton"])
    print(f"{found['versions']}\n\n{table(results)}")
    if args.json:
        write(args.json, found)


if __name__ == "__main__":
    main()
