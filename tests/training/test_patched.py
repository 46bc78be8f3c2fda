"""What is patched, held against torch itself: nothing is replaced that the page does not name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

import ampwatch
from tests.trainings import build
from tools.site import patched

optimizer_hooks = sys.modules[Optimizer.__module__]
PAGE = Path(__file__).parents[2] / "docs" / "what-is-patched.md"


def callables() -> dict[str, int]:
    """Return identities of everything that can be called in torch's modules and their classes."""
    found: dict[str, int] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch" or not isinstance(module, ModuleType):
            continue
        # As they lie there: reading an attribute may warn, or load something.
        for key, value in list(module.__dict__.items()):
            if issubclass(type(value), type) and value.__dict__.get("__module__") == name:
                members = {k: v for k, v in value.__dict__.items() if callable(v)}
                found |= {f"{name}.{key}.{member}": id(v) for member, v in members.items()}
            elif callable(value):
                found[f"{name}.{key}"] = id(value)
    return found


def named(path: str) -> bool:
    """Whether the page has the last two parts of a path: class and method, or module and function."""
    owner, _, name = path.rpartition(".")
    words = re.findall(r"\w+", PAGE.read_text(encoding="utf-8"))
    backends = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
    last = owner.rpartition(".")[2]
    if last == "ProcessGroup" and re.search(
        r"-> \S*Work\b", str(getattr(ProcessGroup, name).__doc__)
    ):
        name = "Work"  # they differ between versions: the page says what they return
    return name in words and (last in words or last in backends)


def test_the_page_is_the_generated_one() -> None:
    """`make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == patched.markdown()


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("light", marks=pytest.mark.rotating),
        pytest.param("standard", marks=pytest.mark.rotating),
        "deep",
    ],
)
@pytest.mark.parametrize("recipe", ["fp16-foreach", "bf16-without-scaler"])
def test_all_that_is_replaced_while_a_training_is_watched_is_on_the_page(
    level: str, recipe: str
) -> None:
    """In the middle of it; afterwards torch is what it was."""
    run = build(recipe)
    build(recipe).loop()  # what torch loads when it is first used is not ours
    before = callables()
    replaced: set[str] = set()

    def compare(_step: int) -> None:
        now = callables()
        replaced.update(path for path, was in before.items() if now.get(path, was) != was)

    run.after_step = compare
    run.steps = 3
    with ampwatch.monitor(run.models, run.scaler, level=level, serve=False):
        run.loop()
    after = callables()

    assert [path for path in sorted(replaced) if not named(path)] == []
    assert any(path.endswith("autograd.backward") for path in replaced)
    assert {path: was for path, was in before.items() if after.get(path, was) != was} == {}
