"""The report as a page: whole, without help, and harmless whatever a run says of itself."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ampwatch.report.html_report import STYLE, render_html
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import RunState, Topic
from tests.host.page.test_static import AA, contrast
from tests.workshop.boxes import box, measured
from tests.workshop.records import IDENTITY, alarm, histogram, step

if TYPE_CHECKING:
    from ampwatch.wire.records import RangeRecord

VOID = {"meta", "br"}
EVIL = "\"'><img src=x onerror=alert(1)><script>alert(2)</script></style></svg>&amp;"


class Reader(HTMLParser):
    """Reads a page as a browser does, as far as nesting goes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_tells_the_cause_first_and_everything_about_it() -> None:
    """The page has what, where, since when, how sure, what to change and each number."""
    reader = Reader(render_html([box()]))

    assert not reader.open
    assert "Run gpt: failing" in reader.text
    assert reader.text.index("forward_overflow happened.") < reader.text.index(
        "scale_collapse happened."
    )
    for words in (
        "certain: the op had finite inputs",
        "module decoder.3.ffn; op mm; in float16; forward pass; rank 0",
        "change forward_overflow",
        "It explains",
        "ampwatch explain forward_overflow",
        "3.051758e-05 (2^-15)",
        "3 iterations were not observed",
        "ValueError: no",
        "overhead_budget",
    ):
        assert words in reader.text, words
    assert reader.tags.count("article") == 1
    assert reader.tags.count("svg") == 4  # the course and the exponents, for two widths each


@pytest.mark.parametrize(
    "place", ["run", "host", "summary", "where", "op", "source", "fact", "note", "module", "kind"]
)
def test_nothing_that_a_run_says_becomes_markup(place: str) -> None:
    """Module names, exceptions and paths are text."""
    made = box()
    finding = made.findings[0]
    if place in ("run", "host"):
        made.identity = replace(IDENTITY, **{place: EVIL})
    elif place == "fact":
        made.facts = {EVIL: EVIL}
        made.settings = {EVIL: EVIL}
    elif place == "note":
        made.notes, made.traceback = [EVIL], EVIL
        made.state, made.reason = RunState.FAILED, EVIL
    elif place == "module":
        finding.where = EVIL
        made.ranges = [measured(0, EVIL, Topic.ACTIVATION)]
    elif place == "kind":
        finding.kind, finding.evidence = EVIL, {EVIL: 1.0}
    else:
        setattr(finding, place, EVIL)
    plain, reader = Reader(render_html([box()])), Reader(render_html([made]))

    assert EVIL in reader.text
    assert set(reader.tags) <= set(plain.tags) | {"ol", "li"}
    assert not {"script", "img"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]


def test_it_needs_nothing_beside_it_and_runs_nothing() -> None:
    """No address, no script; the browser is told so as well."""
    page = render_html([box()])

    assert not re.search(r"https?:|src=|@import|url\(|<script|<link|javascript:", page)
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page


def test_the_skips_and_the_first_step_are_in_the_picture() -> None:
    """One tick for each skipped step, in the colour of its class."""
    page = render_html([box()])
    wide = re.findall(r'<svg[^>]*class="wide".*?</svg>', page)[0]

    assert wide.count('class="skip storm"') == 4
    assert "first seen: step 0" in wide
    assert wide.count('class="nonfinite"') == 4
    assert Reader(wide).text.count("the loss is NaN") == 4


def test_exponents_stand_in_the_region_that_says_what_becomes_of_them() -> None:
    """Against float16: values of 2^-30 become zero, those of 2^-16 lose digits, 2^17 overflows."""
    counts = {-30: 8, -16: 4, 0: 2, 17: 1}
    every = histogram(-30, *(counts.get(e, 0) for e in range(-30, 18)), nans=3)
    made = box()
    made.ranges = [measured(0, "decoder.3.ffn", Topic.ACTIVATION, every)]
    page = render_html([made])
    picture = re.findall(r'<svg[^>]*class="wide".*?</svg>', page)[-1]
    bars = re.findall(r'class="bar (\w+)"[^>]*><title>(.*?)</title>', picture)

    assert [(sort, title.split(": ")[1].split(" ")[0]) for sort, title in bars] == [
        ("flushed", "8"),
        ("subnormal", "4"),
        ("normal", "2"),
        ("overflow", "1"),
        ("overflow", "3"),
    ]
    assert "becomes zero" in picture
    assert "overflows" in picture


def flushed_record(module: str, **changes: Any) -> RangeRecord:
    """Ranges at step 40, at a scale of 2^-20: all six elements are zero, that were not at step 29."""
    known = {"loss_scale": 2.0**-20, "flushed": 6, "before_step": 29}
    known["before"] = histogram(-12, 4, 2)
    zeros = measured(40, module, counts=histogram(0, zeros=6))
    return replace(zeros, **{**known, **changes})


def test_gradients_that_are_gone_are_drawn_as_they_were() -> None:
    """Where the loss scale of now puts them: below what float16 holds. The caption says of when."""
    finding = alarm("grad_underflow", "param:fc.weight", phase="backward", dtype="float16")
    made = Box(IDENTITY, findings=[finding], ranges=[flushed_record("fc")])
    page = render_html([made])
    bars = re.findall(r'class="bar (\w+)"[^>]*><title>(.*?)</title>', page)

    assert len(bars) == 4  # two for each width
    assert [(sort, title.split(": ")[1].split(" ")[0]) for sort, title in bars[:2]] == [
        ("flushed", "4"),
        ("flushed", "2"),
    ]
    said = Reader(page).text
    assert "100 % of them are zero at step 40 only because of the format" in said
    assert "drawn as it was in step 29, at the loss scale of step 40." in said


def test_updates_are_held_against_the_spacing_of_numbers() -> None:
    """Below half of it they round away: 2^-9 of the weight in bfloat16."""
    every = histogram(-12, 5, *([0] * 9), 3, zeros=1)
    finding = alarm("update_rounding", "param:fc.weight", phase="optimizer", dtype="bfloat16")
    made = Box(IDENTITY, findings=[finding], ranges=[measured(0, "fc", Topic.UPDATE, every)])
    page = render_html([made])
    bars = re.findall(r'class="bar (\w+)"', re.findall(r"<svg.*?</svg>", page)[0])

    assert bars == ["flushed", "normal", "zeros"]
    assert "rounds away" in page


@pytest.mark.parametrize(
    "made",
    [
        Box(IDENTITY),
        Box(IDENTITY, findings=[alarm(first_step=10**6)]),
        Box(IDENTITY, findings=[alarm()], steps=[step(0)]),
        Box(IDENTITY, findings=[alarm()], steps=[step(i, num_losses=0, loss_scale=math.nan) for i in (0, 1)]),
        Box(IDENTITY, findings=[alarm()], steps=[step(i, loss=math.inf, loss_scale=0.0) for i in (0, 1)]),
        Box(IDENTITY, findings=[alarm()], steps=[step(i, loss=-1e300 * i, loss_scale=2.0**-1000) for i in (0, 1)]),
        Box(IDENTITY, findings=[alarm()], steps=[step(2**62 * i, loss=1e308 * (i - 0.5) * 2) for i in (0, 1)]),
        Box(IDENTITY, findings=[alarm(phase="backward")], ranges=[measured(0, counts=histogram(0))]),
        Box(IDENTITY, findings=[alarm(phase="backward")], ranges=[measured(0, counts=histogram(0, zeros=3))]),
        Box(IDENTITY, findings=[alarm(phase="backward", dtype="float32")], ranges=[measured(0, counts=histogram(-149, *([1] * 270)))]),
        Box(replace(IDENTITY, started_ns=2**62), written_ns=2**62),
    ],
)  # fmt: skip
def test_little_or_strange_evidence_is_no_error(made: Box) -> None:
    """A page in any case."""
    reader = Reader(render_html([made]))

    assert not reader.open
    assert "nan" not in [value for name, value in reader.attributes if name in ("x", "y", "height")]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("ink", ["ink", "muted", "accent", "warning", "critical", "subnormal"])
def test_text_is_legible_in_both_themes(theme: int, ink: str) -> None:
    """WCAG AA on both grounds; what only names a region may be a little fainter."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE.read_text())
    colours = {name: shades[theme] for name, *shades in pairs}
    least = 3.0 if ink == "subnormal" else AA

    assert min(contrast(colours[ink], colours[g]) for g in ("page", "raised")) >= least
