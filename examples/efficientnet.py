"""An EfficientNet in float32, float16 and bfloat16, and what the switches of PyTorch add to each.

One thing is changed at a time. All configurations take turns, so that a busy machine slows down each
of them; then each trains under ``level="deep"``, which counts what ran in which dtype.

The switches are those of CUDA; elsewhere they change nothing, and stay off.
"""

from __future__ import annotations

import time
from itertools import count
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

import ampwatch

from shared import batch, conclude, digits, parser

BATCH = 32
LEARNT = 1400
"""Images to learn from; the other 397 are kept for the accuracy."""

TURN = 5
"""Steps that one configuration takes before it is the turn of the next."""

NOISE = 1.05
"""A ratio of step times nearer to 1 is no gain."""

SWITCHES = {
    "matmul.allow_tf32": (torch.backends.cuda.matmul, "allow_tf32"),
    "cudnn.allow_tf32": (torch.backends.cudnn, "allow_tf32"),
    "cudnn.benchmark": (torch.backends.cudnn, "benchmark"),
    "matmul.allow_fp16_reduced_precision_reduction": (
        torch.backends.cuda.matmul,
        "allow_fp16_reduced_precision_reduction",
    ),
}


class Configuration(NamedTuple):
    """What a training is run with.

    Attributes:
        name: As it is printed.
        dtype: Of autocast; float32 is without.
        switches: How many of ``SWITCHES`` are on, from the first.
        before: Name of the configuration that it changes one thing of.
    """

    name: str
    dtype: torch.dtype
    switches: int = 0
    before: str = ""


ON_CUDA = (
    Configuration("float32", torch.float32),
    Configuration("float32, matmul TF32", torch.float32, 1, "float32"),
    Configuration("float32, TF32", torch.float32, 2, "float32, matmul TF32"),
    Configuration("float32, TF32, benchmark", torch.float32, 3, "float32, TF32"),
    Configuration("float16", torch.float16, 3, "float32, TF32, benchmark"),
    Configuration("float16, reduced sums", torch.float16, 4, "float16"),
    Configuration("bfloat16", torch.bfloat16, 3, "float32, TF32, benchmark"),
)
ELSEWHERE = (
    Configuration("float32", torch.float32),
    Configuration("float16", torch.float16, before="float32"),
    Configuration("bfloat16", torch.bfloat16, before="float32"),
)


class MBConv(nn.Module):
    """An inverted bottleneck: expand, filter each channel, weigh the channels, project."""

    def __init__(self, inputs: int, outputs: int, expand: int, stride: int) -> None:
        super().__init__()
        wide, squeezed = inputs * expand, inputs
        self.expand = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
        )
        self.squeeze_excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, wide, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (B, ``outputs``, H / ``stride``, W / ``stride``)."""
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze_excite(y))
        return x + y if self.is_residual else y


def efficientnet(width: int) -> nn.Sequential:
    """Return a small EfficientNet for images of 8 x 8, the same one each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.SiLU(),
        MBConv(width, width, expand=1, stride=1),
        MBConv(width, 2 * width, expand=4, stride=2),
        MBConv(2 * width, 2 * width, expand=4, stride=1),
        MBConv(2 * width, 3 * width, expand=4, stride=2),
        nn.Conv2d(3 * width, 10 * width, 1, bias=False),
        nn.BatchNorm2d(10 * width),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(10 * width, 10),
    )


class Training:
    """One model that learns in one configuration.

    Attributes:
        seconds: Time of a step, in each turn. Unit: s.
    """

    def __init__(
        self,
        configuration: Configuration,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
    ) -> None:
        device = images.device
        self.configuration = configuration
        self.model = model.to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        is_float16 = configuration.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=is_float16)
        self.autocast = torch.autocast(
            device.type, configuration.dtype, enabled=configuration.dtype is not torch.float32
        )
        self.images, self.labels = images.to(memory_format=torch.channels_last), labels
        self.steps = count()
        self.seconds: list[float] = []

    def switch(self) -> None:
        """Set the switches for this one."""
        for i, (owner, name) in enumerate(SWITCHES.values()):
            setattr(owner, name, i < self.configuration.switches)

    def turn(self) -> None:
        """Take some steps, and the time."""
        self.switch()
        started = time.perf_counter()
        for _ in range(TURN):
            x, y = batch(next(self.steps), BATCH, self.images[:LEARNT], self.labels[:LEARNT])
            self.optimizer.zero_grad()
            with self.autocast:
                loss = functional.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.images.is_cuda:
            torch.cuda.synchronize()
        self.seconds.append((time.perf_counter() - started) / TURN)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of unseen images that are told right."""
        self.model.eval()
        with self.autocast:
            answers = self.model(self.images[LEARNT:]).argmax(1)
        self.model.train()
        return (answers == self.labels[LEARNT:]).float().mean().item()


def main() -> None:
    """Compare."""
    options = parser(__doc__, steps=200)
    options.add_argument("--width", type=int, default=16, help="channels of the stem (%(default)s)")
    args = options.parse_args()
    images, labels = digits(args.device)
    configurations = ON_CUDA if args.device.type == "cuda" else ELSEWHERE
    trainings = [Training(c, efficientnet(args.width), images, labels) for c in configurations]

    for _ in range(max(2, args.steps // TURN)):
        for training in trainings:
            training.turn()
    # Whatever else the machine does can only add to a time: the best turn is the least disturbed.
    times = {t.configuration.name: min(t.seconds) for t in trainings}

    watches = {}
    for training in trainings:
        name, _, switches, before = training.configuration
        training.switch()
        with ampwatch.monitor(
            training.model, training.scaler, level="deep", run=name, serve=args.page
        ) as watch:
            training.turn()
        watches[name] = watch
        print(f"{name}: {1000 * times[name]:.1f} ms a step, accuracy {training.accuracy():.1%}")
        print(f"  switches: {', '.join(list(SWITCHES)[:switches]) or 'none'}")
        if before:
            print(f"  {verdict(watch, times[before] / times[name], before)}")
    for name, watch in watches.items():
        print(f"\nOps of {name}:\n{watch.op_table(by='dtype')}")
    conclude(args.json, *watches.values())


def verdict(watch: ampwatch.Monitor, ratio: float, before: str) -> str:
    """Say whether there was a gain over what was before, and what ampwatch knows of the reason."""
    if ratio >= NOISE:
        return f"gain: {ratio:.2f} times as fast as {before}"
    reasons = [finding.summary for finding in watch.findings] or [
        "No finding says why: compare the time of each op with that of the other by torch.profiler"
    ]
    return f"no gain: {ratio:.2f} times as fast as {before}. " + ". ".join(reasons)


if __name__ == "__main__":
    main()
