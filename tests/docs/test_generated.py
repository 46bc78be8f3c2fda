"""What is generated of the pages is as it would be generated, and says all that there is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

import ampwatch
from tests.docs.pages import pages
from tests.workshop.examples import ExampleRun
from tools.site import api
from tools.site.tutorial import BLOCK, masked, parts_of_run


def test_each_public_name_is_told_of() -> None:
    """With a heading, or in the table of errors; `actions` by each of its own, callbacks on their pages."""
    text = api.page()
    names = set(dir(ampwatch)) - {"__version__", "actions", "integrations"}
    assert "(integrations/README.md)" in text

    told = set(re.findall(r"^### `ampwatch\.([\w.]+)`$", text, re.MULTILINE))
    told |= set(re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE))

    assert names <= told
    assert {f"actions.{name}" for name in ampwatch.actions.__all__} <= told


def test_each_argument_of_monitor_is_told_of() -> None:
    """In the call, and with what it is."""
    section = api.page().split("### `ampwatch.monitor`")[1].split("\n### ")[0]

    for name in inspect.signature(ampwatch.monitor).parameters:
        assert f"- `{name}`: " in section
        assert re.search(rf"^    \**{name}\b", section, re.MULTILINE)


COMMANDS = sorted({match["command"] for match in BLOCK.finditer(pages()["docs/tutorial.md"])})


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS)
def test_the_tutorial_shows_what_its_programs_print(
    command: str, run_example: Callable[[str], ExampleRun]
) -> None:
    """Each sentence, in its order; apart from what another CPU computes or has otherwise."""
    shown = [
        (match, match[0].split("```text\n")[1].split("\n```")[0])
        for match in BLOCK.finditer(pages()["docs/tutorial.md"])
        if match["command"] == command
    ]

    assert shown
    run = run_example(command)
    printed = parts_of_run(run.output, run.log)
    for match, text in shown:
        now = printed.part(match["part"], match["what"] or "")
        assert masked(text) == masked(now), f"run: python -m tools.site.tutorial ({match['part']})"


def test_what_is_masked_is_what_depends_on_the_machine() -> None:
    """A sentence that says something else is another one, and so is another consequence."""
    assert masked("60 steps,\n  scale 5.6e-14, 1.73 MB") == masked("7 steps, scale 65536, 190 kB")
    assert masked("60 steps skipped") != masked("60 steps taken")
    told = "It explains: scale_collapse, since step 2. It is: {}, scale\n    now 1. Numbers: eps 1"
    row = "11 steps skipped in a row since\n    step 4"
    share = (
        "73% of the steps skipped, more than growth makes up for at an interval of 9, since step 2"
    )
    assert masked(told.format(row)) == masked(told.format(share))
    assert masked(told.format(row)) != masked(told.format("all is well"))
