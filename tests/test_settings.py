"""Tests of the settings: where a value comes from, what is refused, and the page printed from them."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampwatch.errors import SettingsError
from ampwatch.settings import ADDRESSES, LEVELS, MAX_NAME_LENGTH, Settings, markdown

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
FIELDS = dataclasses.fields(Settings)
NUMBERS = [f for f in FIELDS if not isinstance(f.default, str)]
BOUNDS = [
    (f.name, f.metadata[side], direction)
    for f in NUMBERS
    for side, direction in (("low", -1), ("high", 1))
    if f.metadata[side] is not None
]


def resolve(environ: dict[str, str] | None = None, /, **given: Any) -> Settings:
    """Resolve against an environment of the test's own."""
    return Settings.resolve(given, environ or {})


def refusal(environ: dict[str, str] | None = None, /, **given: Any) -> str:
    """Return the message with which the settings are refused."""
    with pytest.raises(SettingsError) as caught:
        resolve(environ, **given)
    return str(caught.value)


def test_the_defaults_are_within_their_own_limits() -> None:
    """Giving every default explicitly is accepted and changes nothing."""
    assert resolve(**dataclasses.asdict(Settings())) == Settings()


def test_a_variable_beats_the_default_and_a_keyword_beats_the_variable() -> None:
    """Keyword, environment, default: in this order."""
    environ = {"AMPWATCH_PORT": "9999", "AMPWATCH_HOST": "::1"}

    assert resolve(environ).port == 9999
    assert resolve(environ, port=8888) == dataclasses.replace(Settings(), port=8888, host="::1")


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.name)
def test_every_number_can_come_from_the_environment(spec: dataclasses.Field[Any]) -> None:
    """A variable is text and arrives as a number of the type of the default."""
    default: Any = spec.default
    high = spec.metadata["high"]
    other = default + 1 if high is None or default + 1 <= high else high
    value = getattr(resolve({f"AMPWATCH_{spec.name.upper()}": str(other)}), spec.name)

    assert value == other
    assert type(value) is type(default)


def test_the_environment_of_the_process_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another one ``os.environ`` counts."""
    monkeypatch.setenv("AMPWATCH_RING_SLOTS", "128")

    assert Settings.resolve().ring_slots == 128


def test_an_empty_variable_and_none_count_as_not_given() -> None:
    """``AMPWATCH_PORT= python train.py`` and ``run=None`` leave the default."""
    assert resolve({"AMPWATCH_PORT": ""}, run=None, level=None) == Settings()


def test_other_variables_are_left_alone() -> None:
    """A variable that is no setting is somebody else's, also with our prefix."""
    assert resolve({"AMPWATCH_SOMETHING_ELSE": "x", "PORT": "1"}) == Settings()


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"colour": "red"}, "'colour'"),
        (
            {"ring_slot": 100, "levl": "light"},
            "'levl'; did you mean 'level'?, 'ring_slot'; did you mean 'ring_slots'?",
        ),
        (
            {"report": "runs"},
            "'report'; did you mean 'port' or 'report_dir' or 'report_files'?",
        ),
    ],
)
def test_an_unknown_keyword_is_refused_with_what_was_meant(given: dict[str, Any], got: str) -> None:
    """Each of them, with the nearest names, and where all are; a list of all would bury them."""
    assert refusal(**given) == (
        f"expected names of settings, got {got};"
        " docs/settings.md lists them all, and so does `python -m ampwatch.settings`"
    )


def test_the_command_that_an_error_names_lists_all_settings() -> None:
    """Where there is no checkout, there are no docs."""
    command = [sys.executable, *refusal(colour="red").split("`")[1].split()[1:]]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert [f.name for f in FIELDS if f"| `{f.name}` |" not in listed] == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("port", "http", "int"),
        ("port", 2.5, "int"),
        ("port", "2.5", "int"),
        ("port", True, "int"),
        ("port", math.nan, "int"),
        ("port", math.inf, "int"),
        ("port", [80], "int"),
        ("poll_seconds", "soon", "float"),
        ("poll_seconds", False, "float"),
        ("stale_seconds", 10**400, "float"),
        ("run", 7, "str"),
        ("ring_dir", b"/tmp", "str"),
        ("level", True, "str"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: Any, expected: str) -> None:
    """The message says what was expected, what was given and what to do."""
    default = getattr(Settings(), name)
    remedy = f"leave it out for the default {default!r}"

    assert refusal(**{name: value}) == f"`{name}`: expected {expected}, got {value!r}; {remedy}"


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize(
    "url",
    ["h", "ftp://a", "http://a:b", "http://a/ b", "http://a/{{", "http://u:p@a", "http://a/?b"],
)
def test_what_is_no_address_is_refused(name: str, url: str) -> None:
    """It would lead nowhere, break a file, be expanded as a template, or have a secret in it."""
    said = refusal(**{name: url})
    assert said.startswith(f"`{name}`: expected an address ")
    assert repr(url) in said
    assert getattr(resolve(**{name: "http://a/b"}), name) == "http://a/b/"


def test_a_bad_variable_is_called_by_its_own_name() -> None:
    """The person who set the variable must recognise it in the message."""
    assert refusal({"AMPWATCH_PORT": "http"}) == (
        "AMPWATCH_PORT: expected int, got 'http'; leave it out for the default 10917"
    )


@pytest.mark.parametrize(("name", "bound", "direction"), BOUNDS)
def test_a_bound_is_inclusive_and_what_is_beyond_is_refused(
    name: str, bound: float, direction: int
) -> None:
    """The limits of the page are the limits of the code."""
    kind = type(getattr(Settings(), name))
    beyond = bound + direction if kind is int else math.nextafter(bound, direction * math.inf)

    assert getattr(resolve(**{name: bound}), name) == bound
    assert f"`{name}`: expected a value " in refusal(**{name: beyond})
    assert f"got {beyond!r}; leave it out" in refusal(**{name: beyond})


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.name)
def test_not_a_number_is_no_number(spec: dataclasses.Field[Any]) -> None:
    """NaN passes every naive comparison with a limit."""
    assert spec.name in refusal(**{spec.name: math.nan})


def test_a_path_object_is_a_directory() -> None:
    """``ring_dir=Path(...)`` is what people write."""
    assert resolve(ring_dir=Path("/dev/shm/x")).ring_dir == "/dev/shm/x"


@pytest.mark.parametrize("name", ["report_dir", "ring_dir", "runtime_dir"])
def test_a_directory_is_where_it_was_when_the_run_began(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that changes its directory has one place for all its reports."""
    monkeypatch.chdir(tmp_path)
    settings = resolve(**{name: "reports"})
    monkeypatch.chdir("/")

    assert getattr(settings, name) == str(tmp_path / "reports")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("level", [*LEVELS]),
        ("gpu", ["auto", "off", "demo"]),
        ("module_series_ranks", ["host", "all", "run"]),
    ],
)
def test_a_choice_takes_its_words_and_no_other(name: str, words: list[str]) -> None:
    """Levels, and what a daemon reads of GPUs and exports of modules; the message has them."""
    assert [getattr(resolve(**{name: word}), name) for word in words] == words
    expected = f"`{name}`: expected one of {', '.join(words)}, got 'yes'"

    assert refusal(**{name: "yes"}) == expected


@pytest.mark.parametrize("run", ["gpt", "7b", "team/gpt:small_v1.2-a", "x" * MAX_NAME_LENGTH])
def test_a_name_of_a_run_is_taken_as_it_is(run: str) -> None:
    """Letters, digits and a few signs, up to the limit."""
    assert resolve(run=run).run_name == run


@pytest.mark.parametrize(
    "run", ["-gpt", "/etc", "my run", 'a"b', "a{b}", "a\n", "größe", "x" * (MAX_NAME_LENGTH + 1)]
)
def test_a_name_that_makes_a_bad_label_is_refused(run: str) -> None:
    """Nothing that would break a query, a log line or a path."""
    assert f"got {run!r}; it becomes a Prometheus label" in refusal(run=run)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("/home/me/train_gpt.py", "train_gpt"),
        ("train (copy 2).py", "train--copy-2"),
        ("-c", "c"),
        ("...", "python"),
        ("", "python"),
        (f"{'x' * 100}.py", "x" * MAX_NAME_LENGTH),
    ],
)
def test_a_run_without_a_name_is_called_after_the_script(
    script: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is stable between restarts and itself an acceptable one."""
    monkeypatch.setattr(sys, "argv", [script])

    assert resolve().run_name == name
    assert resolve(run=name).run == name


def test_the_committed_page_is_the_generated_one() -> None:
    """``docs/settings.md`` is up to date."""
    message = "regenerate it: python -m ampwatch.settings > docs/settings.md"

    assert PAGE.read_text(encoding="utf-8") == markdown(), message


@pytest.mark.parametrize("page", ["settings.md", "using.md"])
def test_a_page_says_what_is_an_error_and_what_a_warning(
    page: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As the code does: of what is unknown and of what is wrong, in a keyword and in a variable."""
    text = " ".join(PAGE.with_name(page).read_text(encoding="utf-8").split())

    assert "An unknown keyword is an error" in text
    assert refusal(colour="red")
    assert re.search("an unknown variable (has no effect and is warned about|a warning)", text)
    assert resolve({"AMPWATCH_COLOUR": "red"}) == Settings()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert re.search(
        "a wrong value is an error in both|value of the wrong type .* is an error", text
    )
    assert refusal(port="http")
    assert refusal({"AMPWATCH_PORT": "http"})


def test_a_variable_that_is_no_setting_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """A slip of the pen in an environment variable would otherwise go unnoticed."""
    with caplog.at_level("WARNING"):
        Settings.resolve(
            {},
            {"AMPWATCH_LEVLE": "off", "AMPWATCH_REQUIRE_SERVICES": "1", "AMPWATCH_Q": "no prefix"},
        )

    assert [
        r.getMessage().removeprefix("expected settings in AMPWATCH_* ") for r in caplog.records
    ] == [
        "variables, got AMPWATCH_LEVLE; did you mean 'AMPWATCH_LEVEL'?",
        "variables, got AMPWATCH_Q; see docs/settings.md",
    ]
