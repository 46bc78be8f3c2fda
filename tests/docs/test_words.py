"""The words of everything that a user reads: subject, verb, object, and the nouns of the field."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.docs.pages import ROOT, pages, tracked

INSTEAD = {
    r"told|tells?": "report, show or name",
    r"born": "appear; a non-finite value has an origin",
    r"astray": "name the problem",
    r"(?:hold|holds|held)(?: \S+){0,5} against": "compare with",
    r"somebody|nobody|whoever": "name the user, the program or the process",
    r"stands? (?:in|here|there|still|alone|out)|would stand": "be, or say what is shown",
    r"swallow(?:s|ed)?": "hide",
    r"of late": "recent",
    r"mends?(?: itself)?": "fix",
    r"foretold": "predict",
    r"for want of": "because there is no",
    r"goes along": "move with it",
    r"messenger": "say what has no effect",
}
"""What no sentence for users has, and what to write instead."""

_BANNED = re.compile("|".join(rf"\b(?:{words})\b" for words in INSTEAD), re.IGNORECASE)
_CODE = re.compile(
    r"`[^`\n]*`|<!--.*?-->|^```(?:python|bash|diff|yaml|toml)\n.*?^```$", re.DOTALL | re.MULTILINE
)
_TEXT_OF_SCRIPTS = re.compile(r"\"([^\"\n]* [^\"\n]*)\"|`([^`\n]* [^`\n]*)`|>([^<>{}]*)<")


def of_python(text: str) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings: messages, help, advice."""
    tree = ast.parse(text)
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def of_page(text: str) -> Iterator[str]:
    """Yield what is to be read of HTML and JavaScript."""
    lines = (line for line in text.splitlines() if not re.match(r"\s*(?://|/\*|\*)", line))
    for match in _TEXT_OF_SCRIPTS.finditer("\n".join(lines)):
        yield re.sub(r"\$\{[^}]*\}", "", next(filter(None, match.groups()), ""))


def of_alerts(text: str) -> Iterator[str]:
    """Yield the annotations of alerts."""
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            yield from rule.get("annotations", {}).values()


def of_dashboard(text: str) -> Iterator[str]:
    """Yield titles and descriptions of panels."""
    for match in re.finditer(
        r'"(?:title|description|text|displayName)": ("(?:[^"\\]|\\.)*")', text
    ):
        yield json.loads(match[1])


PLACES: dict[str, tuple[str, Callable[[str], Iterator[str]]]] = {
    "ampwatch": (r"ampwatch/.*\.py", of_python),
    "page": (r"ampwatch/.*\.(?:js|html)", of_page),
    "alerts": (r"dashboards/alerts/.*\.rules\.yml", of_alerts),
    "dashboards": (r"dashboards/.*\.json", of_dashboard),
    "demo": (r"examples/.*\.py", of_python),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_text_for_users_has_a_word_of_the_list(place: str) -> None:
    """Where it is written, so that what is made of it has none either."""
    pattern, texts = PLACES[place]
    files = [name for name in tracked() if re.fullmatch(pattern, name)]
    found = {
        f"{name}: {match[0]!r} in {text.strip()[:100]!r}"
        for name in files
        for text in texts((ROOT / name).read_text(encoding="utf-8"))
        for match in _BANNED.finditer(text)
        if " " in text.strip()
    }

    assert files
    assert sorted(found) == []


def test_no_page_has_a_word_of_the_list() -> None:
    """Decisions and changes apart, which are a history, and what is for developers; code has names of its own."""
    others = ("docs/decisions/", "CHANGELOG.md", "CONTRIBUTING.md", "tools/", "benchmarks/")
    found = [
        f"{name}: {match[0]!r} in {line.strip()[:100]!r}"
        for name, text in pages().items()
        if not name.startswith(others)
        for line in _CODE.sub("", text).splitlines()
        for match in _BANNED.finditer(line)
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("An infinity is born, and swallowed.", "born"),
        ("Hold two runs against each other.", "Hold two runs against"),
        ("Here would stand load.", "would stand"),
        ("The port is held by pid 3; it stands for the loss.", None),
    ],
)
def test_the_list_finds_what_it_is_for(text: str, word: str | None) -> None:
    """And leaves plain words alone."""
    match = _BANNED.search(text)

    assert (match and match[0]) == word
