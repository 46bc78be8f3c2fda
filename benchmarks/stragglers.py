"""Stragglers planted in four ranks: whether the right rank is named, by what, and whether healthy ranks are left alone.

    python benchmarks/stragglers.py --rounds 20 --healthy 40     everything; some seconds a run
    python benchmarks/stragglers.py data lock --rounds 2         some causes

Each run is four processes with DistributedDataParallel over gloo, watched at ``light``, of which one
sleeps in its loader, computes more, waits for a lock, or shares its core with processes that do
nothing but count. The planted rank moves from run to run. ``--json`` keeps the results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

RANKS = 4
CAUSES = {
    "data": r"it waits for data",
    "compute": r"it computes longer",
    "lock": r"not for a core",
    "busy": r"its host is busy",
}
"""Planted causes, and what has to stand in the summary."""

HEALTHY = "healthy"
WIDTH, BATCH = 128, 64
DELAY_SECONDS = 0.02
COMPETITORS = 6
"""Processes on the core of the busy rank. Four ranks on two cores compete with one another as well: with
fewer the rest of the ranks, on the other core, waits as long for it, and none is slower than another."""


def free_port() -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# One rank.


def _busy_core() -> list[subprocess.Popen[bytes]]:
    """Bind this thread to one core, and have others compete for it."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    code = (
        f"import os\nos.sched_setaffinity(0, {{{core}}})\n"
        f"while os.getppid() == {os.getpid()}: sum(range(100_000))"
    )
    return [subprocess.Popen([sys.executable, "-c", code]) for _ in range(COMPETITORS)]


def _hold(lock: threading.Lock) -> None:
    while True:
        with lock:
            time.sleep(DELAY_SECONDS)
        time.sleep(DELAY_SECONDS / 40)


def _slow_forward(cause: str) -> Any:
    import torch  # noqa: PLC0415 - in the ranks alone

    lock = threading.Lock()
    if cause == "lock":
        threading.Thread(target=_hold, args=(lock,), daemon=True).start()

    def before(_module: object, _args: object) -> None:
        if cause == "lock":
            with lock:
                pass
        else:
            end = time.thread_time() + DELAY_SECONDS / 2
            while time.thread_time() < end:
                torch.mm(torch.randn(64, 64), torch.randn(64, 64))

    return before


def train(cause: str, seconds: float) -> None:
    """Train one rank until all agree that the time is over."""
    import torch  # noqa: PLC0415
    from torch import distributed, nn  # noqa: PLC0415

    import ampwatch  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2**30

        def __getitem__(self, index: int) -> Any:
            if cause == "data" and index % BATCH == 0:
                time.sleep(DELAY_SECONDS)
            return torch.randn(WIDTH), index % 10

    layers = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if cause in ("lock", "compute"):
        layers.register_forward_pre_hook(_slow_forward(cause))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    # The finding is made by the daemon, which the first rank starts: on the cores that the rank has by then.
    watch = ampwatch.monitor(model, scaler, level="light", run="stragglers")
    others = _busy_core() if cause == "busy" else []
    is_over = torch.zeros(1)
    begun = time.monotonic()
    for x, y in torch.utils.data.DataLoader(Samples(), batch_size=BATCH):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        is_over.fill_(float(time.monotonic() - begun > seconds))
        distributed.all_reduce(is_over)
        if is_over.item():
            break
    if distributed.get_rank() == 0:
        time.sleep(1.0)  # the daemon reads what the ranks have written
        print(json.dumps(findings()), flush=True)
    distributed.barrier()
    watch.close()
    for other in others:
        other.kill()
    # Threads of gloo may abort a process that ends by itself.
    os._exit(0)


def findings() -> list[str]:
    """Return the stragglers that the daemon has found, in its words."""
    from ampwatch.cli import daemon_state  # noqa: PLC0415
    from ampwatch.settings import Settings  # noqa: PLC0415

    state = daemon_state.read(Settings.resolve())
    texts = re.findall(r'"Rank \d+ makes the .*?"', msgspec.json.encode(state).decode())
    return sorted(set(texts))


# All of them.


def arguments(cause: str, seconds: float) -> list[str]:
    """Return the command line of one rank."""
    return ["--rank", cause, "--seconds", str(seconds)]


def run(cause: str, slow: int, seconds: float) -> list[str]:
    """Run four ranks, of which one is slow; return what was found."""
    with tempfile.TemporaryDirectory(prefix="ampwatch-") as directory:
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(RANKS),
            "AMPWATCH_RUNTIME_DIR": directory,
            "AMPWATCH_PORT": str(free_port()),
            # The daemon is gone before the next run begins, and takes none of its time.
            "AMPWATCH_GRACE_SECONDS": "0",
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, *arguments(cause if rank == slow else HEALTHY, seconds)],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            answers = [rank.communicate(timeout=seconds + 120)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        lines = [line for line in answers[0].splitlines() if line.startswith("[")]
        found: list[str] = json.loads(lines[-1])
        return found


def is_right(cause: str, slow: int, found: list[str]) -> bool:
    """Whether exactly the planted rank was named, with its cause; of healthy ranks none."""
    if cause == HEALTHY:
        return not found
    named = rf'"Rank {slow} makes .*{CAUSES[cause]}'
    return len(found) == 1 and re.search(named, found[0]) is not None


def main() -> None:
    """Run all, print each, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "causes", nargs="*", help=f"some of {', '.join(CAUSES)}, {HEALTHY}; all by default"
    )
    parser.add_argument("--rounds", type=int, default=20, help="runs of each cause")
    parser.add_argument("--healthy", type=int, default=40, help="healthy runs")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each trains")
    parser.add_argument("--json", type=Path, help="where to keep the results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        train(given.rank, given.seconds)
        return
    right: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for cause in given.causes or [*CAUSES, HEALTHY]:
        for number in range(given.healthy if cause == HEALTHY else given.rounds):
            slow = number % RANKS if cause != HEALTHY else -1
            found = run(cause, slow, given.seconds)
            ok = is_right(cause, slow, found)
            right[cause] += ok
            rows.append({"cause": cause, "rank": slow, "right": ok, "found": found})
            print(cause, slow, "right" if ok else "WRONG", *found, sep="  ", flush=True)
    totals = Counter(row["cause"] for row in rows)
    for cause, total in totals.items():
        print(f"{cause}: {right[cause]} of {total} right")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
