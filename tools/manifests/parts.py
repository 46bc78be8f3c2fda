"""What the makers of manifests share."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kubernetes"

MADE = "Made by python -m tools.manifests."


def replaced(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    """Return ``text`` with what is to be changed in it, all of which has to be there."""
    for old, new in changes:
        if old not in text:
            msg = f"expected {old!r} in what a manifest is made of, got none"
            raise SystemExit(msg)
        text = text.replace(old, new)
    return text
