"""A notebook that is run without a browser: what stands below its cells, also when they are run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.frameworks.running import Fault, Programs, has


def words_of(output: dict[str, Any]) -> str:
    return " ".join(" ".join(ET.fromstring(output["data"]["text/html"]).itertext()).split())


@pytest.mark.nightly
def test_a_notebook_shows_one_card_of_the_training_that_it_does_not_change(
    python: str, tmp_path: Path
) -> None:
    """The live card is drawn again where it stands; monitor and finding are cards in HTML and in text."""
    if not has(python, needs := ("nbclient", "nbformat", "ipykernel")):
        pytest.fail(f"expected {', '.join(needs)} in the environment of {python}")
    programs = Programs(python, tmp_path)
    (bare,) = programs.train("none")

    told = programs.run("notebook.py", fault=Fault.OVERFLOW, name="notebook")

    assert {key: told[key] for key in bare} == bare
    shown = told["shown"]
    # The cells of the card and of the monitor were run twice.
    (live,), (watch,), (finding,) = (shown[name] for name in ("live", "watch", "finding"))
    assert live["output_type"] == "display_data"
    for card in (live, watch):
        assert "broken, ended at step 43" in words_of(card).lower()
        assert "mul in blocks.1.boost overflowed float16" in words_of(card)
        assert "notebook: broken, ended at step 43" in card["data"]["text/plain"]
        assert ET.fromstring(card["data"]["text/html"]).find(".//svg") is not None
    assert "Critical: forward_overflow" in words_of(finding)
    assert "module blocks.1.boost" in words_of(finding)
    logged = [output for output in shown["train"] if output["output_type"] != "stream"]
    assert logged == []
