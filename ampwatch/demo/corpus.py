"""Real text to learn from, found on every machine: the sources of Python's standard library."""

from __future__ import annotations

import sysconfig
from itertools import chain
from pathlib import Path

import torch

from ampwatch.errors import AmpwatchError

VOCABULARY = 128
"""The characters of ASCII; any other one is read as a question mark."""

MAX_CHARACTERS = 2_000_000
MIN_CHARACTERS = 10_000


def source_text() -> bytes:
    """Return Python sources as ASCII, the same ones each time, at most ``MAX_CHARACTERS``.

    They are those of the standard library, and of ampwatch itself where that has none.

    Raises:
        AmpwatchError: If there is too little text to train on.
    """
    roots = (Path(sysconfig.get_paths()["stdlib"]), Path(__file__).parent.parent)
    text = bytearray()
    for path in chain.from_iterable(sorted(root.glob("*.py")) for root in roots):
        text += path.read_text("utf-8", errors="replace").encode("ascii", errors="replace")
        if len(text) >= MAX_CHARACTERS:
            break
    if len(text) < MIN_CHARACTERS:
        places = " and ".join(map(str, roots))
        msg = f"expected {MIN_CHARACTERS} characters of Python source in {places}, got {len(text)}; run the demo with a Python that has its sources"
        raise AmpwatchError(msg)
    return bytes(text[:MAX_CHARACTERS])


class Corpus:
    """A text on the device, and random passages of it, the same ones each time."""

    def __init__(self, text: bytes, device: torch.device, seed: int) -> None:
        self._text = torch.tensor(list(text), dtype=torch.uint8, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device

    def batch(self, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return passages and, for each character, the one that comes next.

        Returns:
            Both of shape (``batch``, ``context``), int64, on the device.

        Cost:
            One gather; no host sync.
        """
        starts = torch.randint(
            len(self._text) - context,
            (batch, 1),
            generator=self._generator,
            device=self._device,
        )
        passages = self._text[starts + torch.arange(context + 1, device=self._device)].long()
        return passages[:, :-1], passages[:, 1:]
