"""The words of everything that a user reads: subject, verb, object, the nouns of the field; and commands that can be typed."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

import pytest
import yaml

from ampwatch.cli import make_parser, split
from tests.docs.pages import ROOT, blocks, pages, tracked

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
    r"heard|hears?": "see, receive",
    r"(?:has|have|had|is|was|are)(?: not)? said(?! to\b)|said (?:of|about)": "report",
    r"speaks? for": "show, suggest",
    r"shown is": "showing",
    r"makes? more of": "increase",
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
        ("It has not said how it ended.", "has not said"),
        ("The port is held by pid 3; it stands for the loss, and is said to be free.", None),
    ],
)
def test_the_list_finds_what_it_is_for(text: str, word: str | None) -> None:
    """And leaves plain words alone."""
    match = _BANNED.search(text)

    assert (match and match[0]) == word


_COMMAND = re.compile(
    r"^ *(?:\$ )?(?:AMPWATCH_\w+=\S+ )*(?:\.venv/bin/)?(?P<program>ampwatch|make) (?P<rest>.*)$"
)
_INLINE = re.compile(r"`(?P<program>ampwatch|make) (?P<rest>[^`\n]+)`")
_WRITTEN = re.compile(r"(?:CRITICAL|WARNING|INFO) run |report: run |[\d<]")
"""Beginnings of what ampwatch writes with its name before it: the log, a report, a version."""

_END_OF_ARGUMENTS = ("|", ">", "&&", ";", "#")


class Command(NamedTuple):
    """A command of a page.

    Attributes:
        page: Where it stands.
        program: ``ampwatch`` or ``make``.
        rest: The rest of its line.
        is_typed: It is a line of its own, to be typed as it is; in a sentence it may be a verb alone.
    """

    page: str
    program: str
    rest: str
    is_typed: bool


def commands(program: str) -> list[Command]:
    """Return each command of a program, but for lines that the program writes itself."""
    found = []
    for page, text in pages().items():
        lines = [
            line
            for block in blocks(page)
            if block.language in ("", "console", "bash", "sh")
            for line in block.code.splitlines()
        ]
        matches = [(m, True) for m in map(_COMMAND.match, lines) if m]
        matches += [(m, False) for m in _INLINE.finditer(text)]
        found += [
            Command(page, m["program"], m["rest"], is_typed)
            for m, is_typed in matches
            if m["program"] == program and not _WRITTEN.match(m["rest"])
        ]
    return found


def arguments(rest: str) -> list[str]:
    """Return the arguments of a line: without what is piped, and without a comment in the third column."""
    words = shlex.split(re.split(r"  +", rest.strip())[0], comments=True)
    return list(takewhile(lambda word: word not in _END_OF_ARGUMENTS, words))


def is_parsed(words: list[str]) -> bool:
    """Tell whether the command line takes the words. Nothing is run."""
    ours, program = split(words)
    try:
        make_parser().parse_args(ours, argparse.Namespace(program=program))
    except SystemExit as ended:
        return ended.code == 0  # --help and --version
    return True


def options_of(parser: argparse.ArgumentParser, words: list[str]) -> set[str]:
    """Return the options that the verbs among the words take, or nothing if one is no verb."""
    if not words:
        return set(parser._option_string_actions)
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner or words[0].startswith("-"):
        return set(parser._option_string_actions)
    verb = inner[0].choices.get(words[0])
    return set() if verb is None else {words[0]} | options_of(verb, words[1:])


def is_known(words: list[str]) -> bool:
    """Tell whether the verbs and options that a sentence names are there."""
    options = options_of(make_parser(), words)
    return bool(options) and {w for w in words if w.startswith("-")} <= options


def test_every_command_to_be_typed_is_one_that_ampwatch_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Verbs, options and choices, by the real parser."""
    typed = [command for command in commands("ampwatch") if command.is_typed]
    refused = [command for command in typed if not is_parsed(arguments(command.rest))]

    assert len(typed) > 20
    assert refused == [], capsys.readouterr().err


def test_every_verb_and_option_that_a_sentence_names_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sentence may leave out the arguments; what it has is right."""
    named = [command for command in commands("ampwatch") if not command.is_typed]
    unknown = [
        command
        for command in named
        if not is_parsed(words := arguments(command.rest)) and not is_known(words)
    ]

    assert len(named) > 60
    assert unknown == [], capsys.readouterr().err
    assert not is_known(["invented"])
    assert not is_known(["doctor", "--invented"])


def test_every_target_of_make_is_one_that_there_is() -> None:
    """Of this Makefile; the pages name no other."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = [(command.page, arguments(command.rest)) for command in commands("make")]

    assert len(named) > 30
    assert [(p, words) for p, words in named if words and words[0] not in targets] == []
