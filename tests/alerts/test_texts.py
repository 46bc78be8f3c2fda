"""Every message that an alert becomes, as a person gets it, is the one that was looked at."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.alerts.rules import alerts
from tests.alerts.texts import GOLDEN, messages

pytestmark = pytest.mark.services

VERBS = "Add|Average|Clamp|Fix|Keep|Leave|Look|Put|Raise|Read|Restore|Run|See|Stop|Take|Use"
"""Words that what is to be done begins with."""


def test_messages_are_those_that_were_looked_at() -> None:
    """Change the rules or the template, run ``python -m tests.alerts.texts``, and read the difference."""
    golden = {file.name: file.read_text(encoding="utf-8") for file in GOLDEN.glob("*.txt")}

    assert messages() == golden


def test_each_alert_has_a_message() -> None:
    assert {file.name.split(".")[0] for file in GOLDEN.glob("*.txt")} == set(alerts())


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.txt")), ids=lambda file: file.stem)
def test_a_message_says_what_and_since_when_and_what_to_do_first_and_where(
    file: Path,
) -> None:
    text = file.read_text(encoding="utf-8")
    title, empty, *rest = text.splitlines()

    assert title.startswith(("CRITICAL: ", "WARNING: ", "INFO: "))
    assert empty == ""
    begun = [line.split(": ")[0] if ": " in line else line.split(" ")[0] for line in rest]
    assert {"What to do first", "Since", "Runbook"} <= {
        word if not word.startswith("Since ") else "Since" for word in begun
    }
    assert re.search(rf"^What to do first: ({VERBS})\b", text, re.MULTILINE)
    assert "<no value>" not in text
    assert "  " not in text
    assert " ." not in text.replace(" .bfloat16", "").replace(" .half", "")
    assert "NaN times" not in text


def test_a_scale_that_is_to_be_typed_is_one_that_a_scaler_takes() -> None:
    """GradScaler takes a whole number for a tensor, and raises in the training that was to be saved."""
    texts = [file.read_text(encoding="utf-8") for file in GOLDEN.glob("*.txt")]
    typed = [n for text in texts for n in re.findall(r"scaler\.update\(new_scale=([^)]*)\)", text)]

    assert {type(ast.literal_eval(number)) for number in typed} == {float}
