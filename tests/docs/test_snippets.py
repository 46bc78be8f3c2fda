"""The Python of the pages runs, with small objects in the places of the reader's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from tests.docs.pages import blocks

PAGES = ("README.md", "docs/index.md", "docs/using.md", "docs/callbacks.md", "docs/float16.md")
"""The pages whose Python is for any training. Those of kinds are run by `tests/diagnoses`."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


class Block(nn.Module):
    """A block with the names that the pages use."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"qkv": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.attn["qkv"](x)
        return out


class Model(nn.Module):
    """Four blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(x))
        return out


def of_a_reader() -> dict[str, Any]:
    """Return what a reader has already: a model and all that trains it."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "torch": torch,
        "ampwatch": ampwatch,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "scaler": torch.amp.GradScaler("cpu"),
        "opt": optimizer,
        "loss_fn": nn.CrossEntropyLoss(),
        "device": "cpu",
        "data": [(torch.randn(3, 4), torch.tensor([0, 1, 1])) for _ in range(3)],
        "save": lambda _finding: None,
        "train": lambda: None,
    }


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ampwatch.Monitor]]:
    """Have monitors keep to themselves, and close them."""
    opened: list[ampwatch.Monitor] = []
    monitor = ampwatch.monitor

    def kept(*arguments: Any, **settings: Any) -> ampwatch.Monitor:
        opened.append(monitor(*arguments, **settings | {"serve": False}))
        return opened[-1]

    monkeypatch.setattr(ampwatch, "monitor", partial(kept))
    yield opened
    for watch in opened:
        watch.close()


@pytest.mark.rotating
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, no_daemon: list[ampwatch.Monitor]
) -> None:
    """Each block in turn, as a reader would type them; what a block is said to print, it prints."""
    torch.manual_seed(0)
    names = of_a_reader()
    found = blocks(page)
    ran = 0

    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language == "python":
            said = io.StringIO()
            with redirect_stdout(said):
                exec(compile(block.code, f"{page}, block {ran}", "exec"), names)
            ran += 1
            if after is not None and after.language == "text":
                assert said.getvalue() == after.code

    assert ran
    assert no_daemon or page == "docs/float16.md"
