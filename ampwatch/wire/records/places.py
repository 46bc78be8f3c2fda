"""Places in sentences: what a finding's ``where`` is called."""

from __future__ import annotations

_PLACES = {
    "": "the model itself",
    "loss": "the loss, outside the model",
    "step": "the steps",
    "api": "the training loop",
    "env": "the machine and its settings",
}
_PREFIXES = {"param": "parameter", "buffer": "buffer", "optimizer": "optimizer"}


def in_words(where: str) -> str:
    """Return a place in words: ``param:fc.weight`` is parameter fc.weight."""
    if where in _PLACES:
        return _PLACES[where]
    prefix, colon, name = where.partition(":")
    if colon and prefix in _PREFIXES:
        return f"{_PREFIXES[prefix]} {name}"
    return f"module {where}"
