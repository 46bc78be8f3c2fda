"""Whether TF32 is allowed, by PyTorch's older and newer switches."""

from __future__ import annotations

import pytest
import torch

from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.model.tf32 import allows_tf32


class _Plain:
    """Switches of which only the older one was used."""

    def __init__(self, *, allow_tf32: bool) -> None:
        self.allow_tf32 = allow_tf32


@pytest.mark.parametrize("allowed", [True, False])
def test_the_older_switch_is_read(*, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of matmuls and that of cuDNN are two."""
    monkeypatch.setattr(torch.backends.cuda, "matmul", _Plain(allow_tf32=allowed))
    monkeypatch.setattr(torch.backends, "cudnn", _Plain(allow_tf32=not allowed))

    assert allows_tf32(OpKind.MATMUL) is allowed
    assert allows_tf32(OpKind.CONVOLUTION) is not allowed


def test_pytorch_has_the_switches_that_are_asked() -> None:
    """TF32 is off for matmuls and on for convolutions, by PyTorch's own defaults."""
    assert allows_tf32(OpKind.MATMUL) is False
    assert allows_tf32(OpKind.CONVOLUTION) is True


class _Mixed:
    """Switches of which both kinds were used: PyTorch raises at the older one."""

    def __init__(self, precision: str) -> None:
        self.fp32_precision = precision

    @property
    def allow_tf32(self) -> bool:
        msg = "mix of the legacy and new APIs"
        raise RuntimeError(msg)


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("ieee", False)])
def test_the_newer_switch_is_read_where_the_older_one_raises(
    *, precision: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question in the middle of a step must not fail."""
    monkeypatch.setattr(torch.backends.cuda, "matmul", _Mixed(precision))

    assert allows_tf32(OpKind.MATMUL) is allowed
