"""``ampwatch deploy``: what a person reads."""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path

import pytest

from ampwatch.cli import main
from ampwatch.wire.rendezvous.token import TOKEN_FILE


def test_it_says_what_it_wrote_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file that a command names is there, also where the shell needs quotes."""
    stack = tmp_path / "my stack"

    assert main(["deploy", str(stack), "--target", "node-a", "--webhook", "http://a/b"]) == 0

    said = capsys.readouterr().out
    found = re.search(r"^.*my stack: (\d+) files\n  (\d+) new\n\n", said)
    assert found is not None
    assert found[1] == found[2]
    assert "Alerts are sent nowhere" not in said
    commands = re.findall(r"^  ([a-z].*)$", said, re.MULTILINE)
    programs = "docker prometheus alertmanager kubectl less"
    assert " ".join(command.split()[0] for command in commands) == programs
    for command in commands:
        words = [word.removeprefix("--config.file=") for word in shlex.split(command)]
        (path,) = (word for word in words if word.startswith(str(stack)))
        assert Path(path).exists()


def test_prometheus_is_told_where_the_token_is(
    own_places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of the daemon, which is made if there is none; a copy would get old."""
    token = own_places / "runtime" / TOKEN_FILE
    config = own_places / "stack" / "deploy/prometheus/prometheus.yml"
    assert main(["deploy", str(own_places / "stack"), "--dry-run"]) == 0
    assert not token.exists()

    assert main(["deploy", str(own_places / "stack")]) == 0
    assert config.read_text().count(f'credentials_file: "{token}"') == 2
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    said = capsys.readouterr().out
    assert f"Your daemon wants the token in {token},\n" in said
    assert "Alerts are sent nowhere yet: give --webhook URL" in said
    written = [path for path in (own_places / "stack").rglob("*") if path.is_file()]
    assert not [path for path in written if token.read_text().strip() in path.read_text()]

    assert main(["deploy", str(own_places / "stack"), "--no-token"]) == 0
    assert "credentials_file" not in config.read_text()
    assert "token" not in capsys.readouterr().out


def test_a_dry_run_names_what_would_change_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a directory that is there, and of one that is not."""
    assert main(["deploy", str(tmp_path / "new"), "--dry-run"]) == 0
    assert not (tmp_path / "new").exists()

    main(["deploy", str(tmp_path / "old")])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    capsys.readouterr()
    arguments = ["--dry-run", "--webhook", "http://a/b", "--target", "node-a"]
    assert main(["deploy", str(tmp_path / "old"), *arguments]) == 0

    said = capsys.readouterr().out
    assert "  1 new\n    deploy/prometheus/targets/ampwatch.yml\n" in said
    assert "  2 updated\n    deploy/alertmanager/alertmanager.yml\n" in said
    assert said.endswith("Nothing was written: --dry-run.\n")
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    assert after == before


def test_what_somebody_changed_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused at first; then as he says."""
    main(["deploy", str(tmp_path)])
    file = tmp_path / "deploy/compose/compose.yaml"
    shipped = file.read_text()
    file.write_text("mine\n")
    capsys.readouterr()

    assert main(["deploy", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ampwatch: expected files in ")
    assert "\n  deploy/compose/compose.yaml\nNothing was written." in said

    assert main(["deploy", str(tmp_path), "--keep"]) == 0
    kept = "  1 kept: changed by hand\n    deploy/compose/compose.yaml\n"
    assert kept in capsys.readouterr().out
    assert file.read_text() == "mine\n"

    assert main(["deploy", str(tmp_path), "--force"]) == 0
    assert "  1 overwritten, though changed by hand\n" in capsys.readouterr().out
    assert file.read_text() == shipped


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "0"], "`--port`: expected 1 to 65535, got '0'"),
        (["--webhook", "chat"], "`--webhook`: expected an address"),
        (["--runbooks", "wiki"], "`--runbooks`: expected an address"),
        (["--grafana-url", "http://g/?a"], "`--grafana-url`: expected an address"),
        (["--scrape-interval", "1h"], "`--scrape-interval`: expected 5s to 60s"),
    ],
)
def test_a_wrong_option_is_reported_before_anything_is_written(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    assert main(["deploy", str(tmp_path / "stack"), *arguments]) == 1

    assert capsys.readouterr().err.startswith(f"ampwatch: {words}")
    assert not (tmp_path / "stack").exists()


@pytest.mark.parametrize("verb", [["deploy"], ["grafana", "export"]], ids=["deploy", "export"])
def test_a_variable_that_is_not_set_does_not_mean_the_directory_one_is_in(
    verb: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Hundreds of files would lie in somebody's home."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    assert main([*verb, ""]) == 1

    assert "expected the name of a directory, got an empty one" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("target", "told"), [("localhost:1", 1), ("node-a", 0)])
def test_loopback_is_said_to_mean_another_machine_in_a_container(
    target: str, told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before somebody looks for the target in vain."""
    main(["deploy", str(tmp_path), "--target", target])

    assert capsys.readouterr().out.count("host.docker.internal") == told
