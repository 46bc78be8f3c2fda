"""PyTorch's own alarm for whatever makes the host wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def sync_debug_mode(mode: str) -> Iterator[None]:
    """Have PyTorch raise (``"error"``) or warn (``"warn"``) at whatever waits for the device.

    No test sets the mode in another way: whatever happens, the next one begins without it.
    """
    torch.cuda.synchronize()
    try:
        _set(mode)
        yield
    finally:
        _set("default")


def _set(mode: str) -> None:
    # The first call in a process warns that this is a prototype, after having set the mode. Where
    # warnings are errors it would raise, and leave the mode on for all tests that follow.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
