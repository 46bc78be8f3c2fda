"""Ranks that nobody trains, in rings that are real: what the daemon reads of a large job.

``python benchmarks/simulated.py DIRECTORY HOSTS RANKS`` writes until its standard input
ends. Host ``i`` has its rings in ``DIRECTORY/i/rings``; every rank ends a step a second, is
sampled every ten and has its ops counted every thirty, at times of its own.
"""

from __future__ import annotations

import math
import random
import selectors
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import (
    ALL_MODULES,
    CastTotal,
    FactsRecord,
    FallbackTotal,
    KernelTotal,
    OpTotal,
    RangeRecord,
    RunIdentity,
    SkipClass,
    Topic,
    WindowRecord,
)
from ampwatch.wire.ring import RingWriter
from tests.workshop.records import (
    census,
    histogram,
    identity,
    op_row,
    optimizer,
    ranges,
    sampling,
    step,
    window,
)

RUN = "gpt-30b-pretrain"
NUM_MODULES = 32
"""Measured modules of a rank: as many as may have series, and all of them have."""
SLOTS = 2048
STEP_SECONDS = 1.0
SAMPLE_STEPS = 10
CENSUS_STEPS = 30
SKIP_EVERY = 2001
"""One probe per growth of the loss scale, as on a healthy run."""

MODULES = [
    "",
    *(
        f"transformer.h.{i // 2}.{'attn.c_attn' if i % 2 else 'mlp.c_fc'}"
        for i in range(NUM_MODULES - 1)
    ),
]
MEASURED = (Topic.GRADIENT, Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT, Topic.UPDATE)
FACTS = FactsRecord(
    {
        "autocast_dtype": "float16",
        "scaler": "GradScaler",
        "init_scale": "65536.0",
        "growth_factor": "2.0",
        "backoff_factor": "0.5",
        "growth_interval": "2000",
        "torch": "2.13.0",
        "python": "3.11.7",
        "device": "NVIDIA H100 80GB HBM3",
        "gpu_capability": "9.0",
        "gpu_sms": "132",
        "gpu_clock_hertz": "1830000000",
        "allow_tf32": "False",
        "cudnn_allow_tf32": "True",
        "float32_matmul_precision": "highest",
    }
)


class SimulatedRank:
    """Writes the ring of one rank.

    Args:
        directory: Where its ring goes.
        identity: Who it is.
    """

    def __init__(self, directory: Path, identity: RunIdentity) -> None:
        self.random = random.Random(identity.rank)
        self.writer = RingWriter.create([directory], identity, slots=SLOTS)
        self.index = -1
        self.skips = 0
        self.samples = 0
        self.censuses = 0
        self.overhead_ns = 0
        self.writer.put(FACTS)
        self.writer.put(self.window())
        self.step()
        self.sample()
        self.census()

    def step(self) -> None:
        """End an iteration, and measure in it when its time has come."""
        self.index += 1
        skipped = self.index % SKIP_EVERY == SKIP_EVERY - 1
        self.skips += skipped
        self.overhead_ns += self.random.randrange(1_000_000, 3_000_000)
        since = self.index % SKIP_EVERY
        self.writer.put(
            step(
                self.index,
                time_ns=time.time_ns(),
                duration_s=self.random.gauss(STEP_SECONDS, 0.02) if self.index else math.nan,
                loss=3.0 + self.random.gauss(0.0, 0.1),
                growth_tracker=since,
                skip_class=SkipClass.PROBE if skipped else SkipClass.NONE,
                consecutive_skips=int(skipped),
                total_growths=self.skips,
                total_backoffs=self.skips,
                overhead_ns=self.overhead_ns,
            )
        )
        self.writer.put(
            optimizer(
                step=self.index,
                skipped=skipped,
                total_steps=self.index + 1,
                total_skipped=(0, self.skips, 0, 0),
            )
        )
        phase = self.index + self.random.randrange(2)
        if phase % SAMPLE_STEPS == 0:
            self.sample()
        if phase % CENSUS_STEPS == 0:
            self.census()

    def sample(self) -> None:
        """Measure all modules."""
        self.samples += 1
        for module in (ALL_MODULES, *MODULES):
            for topic in MEASURED:
                self.writer.put(self.ranges(module, topic))
        n = self.samples
        self.writer.put(
            sampling(
                step=self.index,
                interval=SAMPLE_STEPS,
                samples=(n, n, n, n, 0, 0),
                gradient_elements=n * 10**9,
                gradient_zeros=n * 10**6 + self.random.randrange(10**5),
                gradient_underflow=n * 10**5 + self.random.randrange(10**4),
                gradient_subnormal=n * 10**6 + self.random.randrange(10**5),
                parameter_nonfinite=0,
                buffer_nonfinite=0,
                device_ns=n * 10**6 + self.random.randrange(10**5),
            )
        )

    def ranges(self, module: str, topic: Topic) -> RangeRecord:
        """Return the ranges of a module: a bell over 30 binades."""
        height = 1e6 * self.random.uniform(0.9, 1.1)
        bell = tuple(math.ceil(height * math.exp(-((i - 15) ** 2) / 24)) for i in range(30))
        amax = 2.0 ** (-21 + 29) * self.random.uniform(0.6, 1.0)
        return ranges(
            module,
            topic,
            histogram(-21, *bell, zeros=1000, amax=amax),
            step=self.index,
            time_ns=time.time_ns(),
            dtype="float16",
            loss_scale=65536.0 if topic in (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT) else 1.0,
        )

    def census(self) -> None:
        """Count ops: eight pairs of kind and dtype, three casts, and FLOPs of every module."""
        self.censuses += 1
        n = self.censuses
        kinds = [
            (OpKind.MATMUL, "float16"),
            (OpKind.ATTENTION, "float16"),
            (OpKind.POINTWISE, "float16"),
            (OpKind.MATMUL, "float32"),
            (OpKind.NORMALIZATION, "float32"),
            (OpKind.LOSS, "float32"),
            (OpKind.REDUCTION, "float32"),
            (OpKind.POINTWISE, "float32"),
        ]
        self.writer.put(
            census(
                *(
                    op_row(
                        "",
                        module=module,
                        calls=2,
                        flops=10**10,
                        tensor_flops=10**10,
                        bytes=10**7,
                    )
                    for module in MODULES
                ),
                step=self.index,
                time_ns=time.time_ns(),
                iterations=n,
                ops=tuple(
                    OpTotal(
                        kind,
                        dtype,
                        96 * n,
                        10**12 * n if kind.has_flops else 0,
                        10**12 * n if kind.has_flops else 0,
                        10**9 * n,
                    )
                    for kind, dtype in kinds
                ),
                casts=(
                    CastTotal("float32", "float16", 200 * n, 10**9 * n),
                    CastTotal("float16", "float32", 90 * n, 10**8 * n),
                    CastTotal("int64", "float32", 1 * n, 10**4 * n),
                ),
                fallbacks=(FallbackTotal(Fallback.FP32_LIST, 4 * n, 10**9 * n),),
            )
        )

    def window(self) -> WindowRecord:
        """Return a profiler window."""
        return window(
            KernelTotal("tensor", "float16", 900_000_000),
            KernelTotal("cuda", "float32", 100_000_000),
            KernelTotal("other", "", 500_000_000),
            start_ns=2_000_000,
            run_ns=3_000_000,
            stop_ns=4_000_000,
            walk_ns=5_000_000,
            first_ns=900_000_000,
            drag=1.0,
            memory_bytes=10**6,
            busy_ns=1_500_000_000,
            wall_ns=2_000_000_000,
            misaligned_ns=10_000_000,
        )


def ranks_of(place: Path, num_hosts: int, num_ranks: int) -> list[SimulatedRank]:
    """Return the ranks of all hosts, each of which has written what a start writes."""
    first = identity(
        run=RUN, world_size=num_hosts * num_ranks, started_ns=time.time_ns(), version="0.1.0"
    )
    ranks = []
    for host in range(num_hosts):
        for local in range(num_ranks):
            rank = host * num_ranks + local
            who = replace(
                first, rank=rank, local_rank=local, pid=100_000 + rank, host=f"node-{host:04}"
            )
            ranks.append(SimulatedRank(place / str(host) / "rings", who))
    return ranks


def main() -> None:
    """Write until the standard input ends; say how many ranks once all rings are there."""
    place, num_hosts, num_ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ranks = ranks_of(place, num_hosts, num_ranks)
    print(len(ranks), flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        begin, written = time.monotonic(), 0
        while True:
            # Spread over the second, as the ranks of different hosts are.
            due = int((time.monotonic() - begin) / STEP_SECONDS * len(ranks))
            for number in range(written, due):
                ranks[number % len(ranks)].step()
            written = due
            if selector.select(STEP_SECONDS / 50):
                return


if __name__ == "__main__":
    main()
