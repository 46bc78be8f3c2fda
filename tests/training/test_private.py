"""Private names of torch: in one file, and what happens where one is missing; the page of what is patched."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

import ampwatch
from ampwatch.training import private
from tests.trainings import build
from tools.site import patched

PACKAGE = Path(ampwatch.__file__).parent


def _private_names(path: Path) -> list[str]:
    """Return the private names below ``torch`` that the code of a file reads."""
    text, found = path.read_text(), list[str]()
    if not re.search(r"torch[\w.]*(\._|.* import .*_)", text):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            name = f"{node.module}.{node.names[0].name}"
        else:
            continue
        if re.match(r"torch\.(\w+\.)*_(?!_)", name):
            found.append(name)
    return found


def test_no_other_file_reads_a_private_name_of_torch() -> None:
    """A torch that has changed is met in one place."""
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "private.py"]
    assert len(files) > 400
    found = {str(path.relative_to(PACKAGE)): _private_names(path) for path in files}

    assert {path: names for path, names in found.items() if names} == {}
    assert _private_names(PACKAGE / "training" / "private.py")


def test_the_torch_of_the_tests_has_the_names_that_were_seen_in_it() -> None:
    """Rows of names that are gone would stay for good otherwise."""
    version = torch.__version__.partition("+")[0]
    if version not in private.ABSENT:
        pytest.skip(f"torch {version} was not tried")
    assert {row.name for row in private.missing()} == private.ABSENT[version]


def test_a_name_that_is_gone_is_replaced_or_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is attached."""
    monkeypatch.setattr(private, "NAMES", [])

    assert private._find("_C._gone", "Nothing.", "It is guessed.", 7) == 7
    with pytest.raises(
        ampwatch.AttachError,
        match=r"expected torch 2\.6 or newer with .*torch\._C\._gone, got torch",
    ):
        private._find("_C._gone", "Nothing.")
    assert [row.name for row in private.NAMES] == ["torch._C._gone", "torch._C._gone"]
    assert [row.name for row in private.missing()] == ["torch._C._gone", "torch._C._gone"]


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
