"""What `ampwatch lab diff` and tools like it say of the same pairs of runs, of which one thing was changed in the second.

    python benchmarks/diff_peers.py ampwatch --json FILE
    python benchmarks/diff_peers.py msprobe --json FILE
    python benchmarks/diff_peers.py torchtitan --source DIRECTORY --json FILE
    python benchmarks/diff_peers.py paddle --json FILE

Each is run by the interpreter of an environment that has it (`diff_peers.txt`), and adds to FILE. The
pairs are those that tests/lab/difference/test_two_runs.py plants, and some in which nothing is wrong. Paddle
trains a model of its own framework, of the same shape, on what can be planted there. torchtitan's tracer
is in its repository, not in its package: DIRECTORY is `agent_tooling/numerics_debugging` of a checkout.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]

CHANGED = (
    "a dtype",
    "tf32",
    "eps",
    "a dropped cast",
    "a kernel",
    "a seed",
    "dropout",
    "dropout, across formats",
)
HEALTHY = ("float32, float16", "float16, bfloat16", "another order of adding up", "the same twice")
PADDLE = ("eps", "a kernel", "a seed", "dropout", "the same twice")
SHOWN = 3
STATISTICS = ("Max", "Min", "Mean", "L2norm")
NO_DIFFERENCE = ("0", "0.0", "N/A", "None", "")


def pairs_of(tool: str) -> Sequence[str]:
    """Return the pairs that a tool is asked about."""
    return PADDLE if tool == "paddle" else (*CHANGED, *HEALTHY)


# A training, in a process of its own.


def planted(pair: str, side: int) -> Any:
    """Return what is changed on one side of a pair."""
    from tests.lab.difference import test_two_runs as known  # noqa: PLC0415 - not beside Paddle

    if pair in known.PLANTED:
        return known.PLANTED[pair][side]
    if pair in known.SILENT:
        return known.SILENT[pair][side]
    if pair == "another order of adding up" and side:
        return known.Planted(model=known.reduction)
    return known.Planted()


def train(tool: str, pair: str, side: int, place: Path, source: Path | None) -> None:
    """Train one side of a pair, watched by a tool, which leaves what it records in ``place``."""
    if tool == "paddle":
        train_with_paddle(pair if side else "", place)
        return
    from tests.lab.difference.two_runs import run, train  # noqa: PLC0415 - needs torch

    what = planted(pair, side)
    if tool == "ampwatch":
        train(place, what)
        return
    watch, after = {"msprobe": with_msprobe, "torchtitan": with_torchtitan}[tool](place, source)
    run(what, watch, after)


def with_msprobe(place: Path, _source: Path | None) -> tuple[Any, Callable[[int], None]]:
    """Return a context in which msprobe dumps statistics of the first step, and what ends a step."""
    import torch.distributed as dist  # noqa: PLC0415 - of this tool alone
    from msprobe.pytorch import PrecisionDebugger  # noqa: PLC0415 - likewise

    # Its search for the first difference reads dumps of ranks, and of no process without one.
    dist.init_process_group("gloo", init_method=f"file://{place}-store", rank=0, world_size=1)
    debugger = PrecisionDebugger(task="statistics", level="mix", dump_path=str(place), step=[0])
    models: list[Any] = []

    @contextmanager
    def watch(model: Any, _optimizer: Any, _scaler: Any) -> Iterator[None]:
        models.append(model)
        debugger.start(model)
        yield

    def after(step: int) -> None:
        debugger.stop()
        debugger.step()
        if step == 0:
            debugger.start(models[0])

    return watch, after


def with_torchtitan(place: Path, source: Path | None) -> tuple[Any, Callable[[int], None]]:
    """Return a context in which torchtitan's tracer logs the ops of the first step, and what ends a step."""
    sys.path.insert(0, str(source))
    from activation_tracer import ActivationCaptureProfiler  # noqa: PLC0415 - of this tool alone

    tracers: list[Any] = []

    @contextmanager
    def watch(model: Any, _optimizer: Any, _scaler: Any) -> Iterator[None]:
        tracer = ActivationCaptureProfiler(enabled=True, model=model, dump_dir=str(place))
        tracers.append(tracer)
        with tracer:
            yield

    return watch, lambda _step: tracers[0].step()


def train_with_paddle(pair: str, place: Path) -> None:
    """Train three blocks like those of the other tools, in Paddle, for one step with its checker on."""
    import numpy as np  # noqa: PLC0415 - of this tool alone
    import paddle  # noqa: PLC0415 - likewise
    from paddle import nn  # noqa: PLC0415 - likewise
    from paddle.amp import debugging  # noqa: PLC0415 - likewise

    class Block(nn.Layer):
        def __init__(self, number: int) -> None:
            super().__init__()
            eps = 1e-3 if pair == "eps" and number == 1 else 1e-5
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32, epsilon=eps)
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
            self.is_tanh = pair == "a kernel" and number == 0
            self.drops = pair == "dropout" and number == 2

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm1(x)).reshape([8, 12, 3, 4, 8]).transpose([2, 0, 3, 1, 4])
            weights = nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * 8**-0.5)
            x = x + self.out((weights @ v).transpose([0, 2, 1, 3]).reshape([8, 12, 32]))
            h = nn.functional.gelu(self.up(self.norm2(x)), approximate=self.is_tanh)
            return x + nn.functional.dropout(self.down(h), 0.1, training=self.drops)

    paddle.set_device("cpu")
    paddle.seed(0)
    model = nn.Sequential(nn.Embedding(60, 32), *map(Block, range(3)), nn.LayerNorm(32))
    head = nn.Linear(32, 60)
    if pair == "a seed":
        paddle.seed(7)
        model[2].up.weight.set_value(paddle.randn([32, 64]) * 0.2)
    drawn = np.random.RandomState(0)
    words, targets = (paddle.to_tensor(drawn.randint(60, size=(8, 12))) for _ in range(2))
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=[*model.parameters(), *head.parameters()])
    place.mkdir(parents=True)
    debugging.enable_tensor_checker(
        debugging.TensorCheckerConfig(
            enable=True, debug_mode=debugging.DebugMode.CHECK_ALL, output_dir=str(place)
        )
    )
    paddle.nn.functional.cross_entropy(head(model(words)), targets).backward()
    optimizer.step()
    debugging.disable_tensor_checker()


# What a tool says of a pair.


def said_by_ampwatch(a: Path, b: Path, _source: Path | None) -> dict[str, Any]:
    """Return the verdict, and the one place."""
    found = called("-m", "ampwatch", "diff", str(a), str(b), "--json")
    document = json.loads(found.stdout)
    first = document["departures"][:1]
    return {
        "verdict": document["verdict"],
        "flagged": len({d["place"] for d in document["departures"]}),
        "first": [d["place"] for d in first],
        "causes": document["causes"],
    }


def said_by_msprobe(a: Path, b: Path, _source: Path | None) -> dict[str, Any]:
    """Return how many rows of its table are marked, and which its search for the first names."""
    out = a.with_name("msprobe")
    steps = ["-tp", str(b / "step0"), "-gp", str(a / "step0")]
    tool = str(Path(sys.executable).with_name("msprobe"))
    table = subprocess.run(
        [tool, "compare", *steps, "-o", str(out)], capture_output=True, text=True, check=False
    )
    files = list(out.glob("*.csv"))
    if not files:
        return {"failed": (table.stdout + table.stderr).splitlines()[-1:]}
    with files[0].open() as file:
        rows = list(csv.DictReader(file))
    marked = [row for row in rows if row["Result"] != "pass"]
    differ = [
        row for row in rows if any(row[f"{name} diff"] not in NO_DIFFERENCE for name in STATISTICS)
    ]
    first = a.with_name("first")
    first.mkdir()
    search = subprocess.run(
        [tool, "compare", *steps, "-da", "-o", str(first)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(p.read_text()) for p in first.glob("diff_analyze*.json")]
    return {
        "rows": len(rows),
        "differ": len(differ),
        "flagged": len(marked),
        "errors": sum(row["Result"] == "error" for row in marked),
        "first differing": [row["NPU Name"] for row in differ[:SHOWN]],
        "first": [f"{row['NPU Name']}: {row['Err_message']}" for row in marked[:SHOWN]],
        "first difference analysis": [str(names_in(each))[:400] for each in found]
        or [
            re.sub(r"^.*\] ?", "", line)
            for line in (search.stdout + search.stderr).splitlines()[-1:]
        ],
    }


def names_in(found: Any) -> list[str]:
    """Return the names of ops in what msprobe's search has found."""
    if isinstance(found, dict):
        here = [str(value) for key, value in found.items() if key == "op_name"]
        return here + [name for value in found.values() for name in names_in(value)]
    return [name for value in found for name in names_in(value)] if isinstance(found, list) else []


def said_by_torchtitan(a: Path, b: Path, source: Path | None) -> dict[str, Any]:
    """Return how many rows of its table differ, and the first of them in the order of the table."""
    sys.path.insert(0, str(source))
    import compare_numerics  # noqa: PLC0415 - of this tool alone

    logs = [compare_numerics.parse_log(str(next(each.glob("*.log"))))[0] for each in (a, b)]
    results = compare_numerics.match_entries(*logs)
    rows = [(row[0] or row[1], row[2]) for row in results]
    differ = [entry.key for entry, status in rows if status != "match"]
    return {"rows": len(rows), "flagged": len(differ), "first": differ[:SHOWN]}


def said_by_paddle(a: Path, b: Path, _source: Path | None) -> dict[str, Any]:
    """Return how many rows of its table differ, and how many are marked as too far apart."""
    import openpyxl  # noqa: PLC0415 - of this tool alone
    from paddle.amp import debugging  # noqa: PLC0415 - likewise

    out = str(a.with_name("paddle.xlsx"))
    debugging.compare_accuracy(str(a), str(b), out, loss_scale=1, dump_all_tensors=False)
    (sheet,) = openpyxl.load_workbook(out)
    rows = list(sheet.iter_rows(min_row=3))
    differ = [row for row in rows if [c.value for c in row[5:8]] != [c.value for c in row[10:13]]]
    # Red is what its rule flags, orange a ratio that is not near 1; yellow are dtypes.
    marked = [row for row in rows if {_fill(cell) for cell in row} & {"FF0000", "FF6600", "FFA500"}]
    return {
        "rows": len(rows),
        "differ": len(differ),
        "flagged": len(marked),
        "first differing": [f"{row[0].value} {row[1].value}" for row in differ[:SHOWN]],
        "first": [f"{row[0].value} {row[1].value}" for row in marked[:SHOWN]],
    }


def _fill(cell: Any) -> str:
    """Return the colour of a cell, as six digits."""
    return str(cell.fill.fgColor.rgb)[-6:] if cell.fill.fill_type else ""


SAID = {
    "ampwatch": (said_by_ampwatch, ("torch",)),
    "msprobe": (said_by_msprobe, ("mindstudio-probe", "torch")),
    "torchtitan": (said_by_torchtitan, ("torchtitan", "torch")),
    "paddle": (said_by_paddle, ("paddlepaddle",)),
}
"""What reads the answer of a tool, and the packages whose versions matter."""


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def ask(tool: str, pair: str, source: Path | None) -> dict[str, Any]:
    """Train both sides of a pair, and return what a tool says of them."""
    with tempfile.TemporaryDirectory() as name:
        places = [Path(name) / letter for letter in "ab"]
        seconds = []
        for side, place in enumerate(places):
            began = time.perf_counter()
            more = ["--source", str(source)] if source else []
            training = ("--train", pair, str(side), str(place))
            ran = called(__file__, tool, *training, *more)
            seconds.append(round(time.perf_counter() - began, 1))
            if ran.returncode:
                return {"failed": ran.stderr.splitlines()[-3:]}
        return {"seconds": seconds, **SAID[tool][0](*places, source)}


def main() -> None:
    """Ask one tool about all pairs, or train one side of one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tool", choices=SAID)
    parser.add_argument("--source", type=Path, help="where torchtitan's two files are")
    parser.add_argument("--json", type=Path, help="file to add the answers to")
    parser.add_argument("--only", action="append", help="a pair")
    parser.add_argument("--train", nargs=3, metavar=("PAIR", "SIDE", "PLACE"), help="inside of it")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if args.train:
        pair, side, place = args.train
        train(args.tool, pair, int(side), Path(place), args.source)
        return
    answers = {}
    for pair in args.only or pairs_of(args.tool):
        answers[pair] = ask(args.tool, pair, args.source)
        print(pair, json.dumps(answers[pair], indent=1), flush=True)
    if args.json:
        kept = json.loads(args.json.read_text()) if args.json.exists() else {}
        before = kept.get(args.tool, {}).get("pairs", {})
        kept[args.tool] = {
            "versions": {name: version(name) for name in SAID[args.tool][1]},
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "pairs": {**before, **answers},
        }
        args.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
