"""Places in memory, which are referred to weakly."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from ampwatch.training.native import core
from ampwatch.training.ops.storage import Finalizer, PythonFinalizer, WeakStorage


def test_a_storage_is_referred_to_for_as_long_as_it_is_there() -> None:
    tensor = torch.ones(3)
    weak = WeakStorage(tensor.untyped_storage())
    view = tensor[1:]
    del tensor
    assert not weak.expired()
    del view

    assert weak.expired()


@pytest.mark.parametrize("kind", [PythonFinalizer, Finalizer])
def test_a_finalizer_calls_once_it_is_let_go_of(kind: Any) -> None:
    """Also while an error is on its way, which stays the error."""
    called: list[object] = []

    def fail() -> None:
        end = kind(called.append, 1)
        assert end is not None
        raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert called == [1]


@pytest.mark.skipif(core is None, reason="the extension module is not built")
def test_no_python_runs_where_a_reference_ends() -> None:
    """There a Ctrl-C would be lost: Python reports what is raised in a `__del__`, and goes on."""
    weak: Any = WeakStorage(torch.ones(3).untyped_storage())
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    del weak
    sys.setprofile(None)

    assert calls == []
