"""What is generated of the pages is as it would be generated, and says all that there is."""

from __future__ import annotations

import ast
import inspect
import math
import re
from importlib import import_module
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import torch

import ampwatch
from ampwatch.doctor.examination import terminal
from ampwatch.numerics.formats import FORMATS
from tests.docs.pages import ROOT, pages
from tools.pictures.drawing import OF_PAGE, PICTURES, files, gradients, number, numbers
from tools.pictures.training import counted, measured
from tools.site import api, troubleshooting
from tools.site.tutorial import BLOCK, masked, parts_of_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workshop.examples import ExampleRun

FLUSHED_IN_FLOAT16 = -25
"""Numbers up to two to this power round to zero."""


def test_each_generated_page_is_that_of_the_code() -> None:
    """`make check` says so as well."""
    assert pages()["docs/api.md"] == api.page()
    assert pages()["docs/troubleshooting.md"] == troubleshooting.page()


def test_each_public_name_is_told_of() -> None:
    """With a heading, or in the table of errors; `actions` by each of its own, callbacks on their pages."""
    text = api.page()
    names = set(ampwatch.__all__) - {"__version__", "actions", "integrations"}
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


def test_each_check_that_is_not_ok_is_a_line_of_the_page() -> None:
    """As many lines as the doctor has calls, or more, where one call says it of several things."""
    for title, modules in troubleshooting.GROUPS.items():
        section = troubleshooting.page().split(f"\n## {title}\n")[1].split("\n## ")[0]
        table = section.strip().split("\n\n")[0]
        calls = [
            node
            for module in modules
            for node in ast.walk(
                ast.parse(inspect.getsource(import_module(f"ampwatch.doctor.{module}")))
            )
            if isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "Check"
            and ast.unparse(node.args[1]) != "State.OK"
        ]

        assert len(calls) > 1
        assert len(table.splitlines()) - 2 >= len(calls)
        assert "**" not in table


def test_a_sentence_of_the_doctor_is_found_on_the_page() -> None:
    """The sentence about a machine without extras stands there word by word."""
    (absent,) = terminal(lambda _: None)

    line = f"| {absent.name} | absent | {absent.why} | {absent.remedy} |"
    assert line in troubleshooting.page()


def test_each_picture_is_as_it_would_be_drawn() -> None:
    """From the rows of formats, and from what is kept of the training; each is on the page."""
    for file, drawn in files(measured()).items():
        assert file.read_text(encoding="utf-8") == drawn
        ET.fromstring(drawn)
    for name in PICTURES:
        page = f"docs/{'block-formats' if name.startswith('blocks') else 'float16'}.md"
        assert f"](images/{name})" in pages()[page]


def test_the_picture_of_gradients_counts_what_float16_flushes() -> None:
    """The share that it says is that of the counts, with and without a loss scale."""
    kept = measured()
    exponents = {int(e): n for e, n in kept["exponents"].items()}
    whole = sum(exponents.values())
    for scale in (0, 8):
        flushed = sum(n for e, n in exponents.items() if e + scale <= FLUSHED_IN_FLOAT16)
        assert f"{flushed / whole:.1%} become zero" in gradients(kept, scale)


def test_the_sentences_about_the_pictures_hold() -> None:
    """One in six is zero; most of the others lose digits; a millionth of what would fit."""
    text = " ".join(pages()["docs/float16.md"].split())
    exponents = {int(e): n for e, n in measured()["exponents"].items()}
    whole = sum(exponents.values())
    flushed = sum(n for e, n in exponents.items() if e <= FLUSHED_IN_FLOAT16) / whole
    normal = math.log2(FORMATS["float16"].min_normal)
    subnormal = sum(n for e, n in exponents.items() if FLUSHED_IN_FLOAT16 < e <= normal) / whole

    assert "One in six is zero" in text
    assert abs(flushed - 1 / 6) < 0.02
    assert subnormal > (1 - flushed) / 2
    assert "a millionth of what would fit" in text
    assert 0.5e-6 < 2.0 ** max(exponents) / FORMATS["float16"].max < 2e-6


@pytest.mark.parametrize("name", OF_PAGE)
def test_the_numbers_of_a_format_end_where_the_format_does(name: str) -> None:
    """The smallest and the largest are those of its row, which derives them otherwise."""
    fmt = FORMATS[name]
    if fmt.bits > 16:
        return
    found = numbers(fmt)

    assert (found[0], found[1], found[-1]) == (0.0, fmt.min_subnormal, fmt.max)
    assert len(found) == fmt.max_pattern + 1


def test_a_magnitude_is_counted_up_to_its_power_of_two() -> None:
    """As everywhere in ampwatch: the upper end belongs to the bin."""
    values = torch.tensor([0.0, 1.0, -1.0, 1.5, 2.0, 2.0**-25, 2.0**-149])

    assert counted(values) == {0: 2, 1: 2, -25: 1, -149: 1}


@pytest.mark.parametrize(
    ("value", "words"), [(65504.0, "65504"), (448.0, "448"), (0.5, "0.5"), (2.0**-24, "6.0·10⁻⁸")]
)
def test_a_limit_is_written_as_people_do(value: float, words: str) -> None:
    """Plain where it is short."""
    assert number(value) == words


COMMANDS = sorted({match["command"] for match in BLOCK.finditer(pages()["docs/tutorial.md"])})


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
    told = (
        "It explains: scale_collapse, since step 2. It is: {}, scale\n    now 1.{} Numbers: eps 1"
    )
    row = "11 steps skipped in a row since\n    step 4"
    share = (
        "73% of the steps skipped, more than growth makes up for at an interval of 9, since step 2"
    )
    terms = " In other words: half: 16\n    bits. eps: small."
    assert masked(told.format(row, terms)) == masked(told.format(share, ""))
    assert masked(told.format(row, "")) != masked(told.format("all is well", ""))
    assert masked(told.format(row, "")) != masked(told.format(row, " Stop."))


def test_the_readme_is_short_and_has_one_table_and_one_picture() -> None:
    """Long tables have pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert len(readme.splitlines()) <= 120
    assert len(re.findall(r"^\| --- ", readme, re.MULTILINE)) == 1
    assert readme.count("![") == 1
