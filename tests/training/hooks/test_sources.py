"""The place in the user's code that something was called from."""

from __future__ import annotations

import sysconfig
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch import demo
from ampwatch.training.hooks.sources import is_in_optimizer, is_users_file, user_source


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def test_the_source_is_the_line_that_called() -> None:
    """File and line of this very call."""
    assert user_source() == f"{__file__}:{_line_of('# here')}"  # here


def test_frames_of_pytorch_are_passed_over() -> None:
    """A hook that PyTorch calls is told the line of the user that ran the module."""
    seen: list[str] = []
    code = "def hook(*_):\n    seen.append(user_source())\n"
    generated: dict[str, object] = {"seen": seen, "user_source": user_source}
    exec(compile(code, "<string>", "exec"), generated)
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(generated["hook"])  # type: ignore[arg-type]
    model(torch.ones(1, 2))  # ran

    assert seen == [f"{__file__}:{_line_of('# ran')}"]


def test_a_thread_without_a_frame_of_the_user_has_no_source() -> None:
    """Autograd's own threads have no frame of the user."""
    seen: list[str] = []
    generated: dict[str, object] = {"seen": seen, "user_source": user_source}
    exec(compile("def run():\n    seen.append(user_source())\n", "<string>", "exec"), generated)
    thread = threading.Thread(target=generated["run"])  # type: ignore[arg-type]
    thread.start()
    thread.join()

    assert seen == [""]


@pytest.mark.parametrize(
    ("name", "is_users"),
    [
        (__file__, True),
        ("/home/somebody/train.py", True),
        ("train.py", True),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", True),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        ("<eval_with_key>.0", False),
        (torch.nn.__file__, False),
        (ampwatch.__file__, False),
        (demo.__file__, True),
        (threading.__file__, False),
        (sysconfig.get_path("purelib") + "/transformers/models/t5/modeling_t5.py", True),
    ],
)
def test_whose_a_file_is(name: str, *, is_users: bool) -> None:
    """PyTorch, ampwatch, the standard library and generated code are not; the demo's training is."""
    assert is_users_file(name) is is_users


class Plain(torch.optim.Optimizer):
    """An optimizer of a user: neither its step nor its base's is PyTorch's own."""

    def __init__(self, parameters: list[nn.Parameter], seen: list[bool]) -> None:
        super().__init__(parameters, {})
        self.seen = seen

    def step(self, closure: object = None) -> None:
        self.seen.append(is_in_optimizer())


def test_the_step_of_any_optimizer_is_known_from_inside() -> None:
    """The step of a user's class is known as well, and only while it runs."""
    seen: list[bool] = []
    optimizer = Plain([nn.Parameter(torch.ones(1))], seen)
    optimizer.step()
    seen.append(is_in_optimizer())

    assert seen == [True, False]
