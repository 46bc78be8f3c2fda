"""The tests that reach a change are found by imports, nearest first."""

from __future__ import annotations

import pytest

from tools.near import near


def test_a_module_is_near_its_own_tests_and_farther_from_those_of_what_imports_it() -> None:
    """Hops more bring in more tests, behind the nearer ones."""
    close = near(["ampwatch/report/verdict.py"], 1)
    wide = near(["ampwatch/report/verdict.py"], 2)

    assert "tests/report/test_verdict.py" in close
    assert "tests/cli/test_report.py" not in close
    assert wide[: len(close)] == close
    assert len(wide) > len(close)


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("ampwatch/host/page/static/page.js", "tests/host/page/test_page.py"),
        ("docs/metrics.md", "tests/docs/test_links.py"),
        ("tests/errors.txt", "tests/test_errors.py"),
        ("tests/tools/test_near.py", "tests/tools/test_near.py"),
    ],
)
def test_what_is_no_module_is_near_the_tests_of_its_folder(changed: str, test: str) -> None:
    """A script of the page, a document, a file of data; and a test is near itself."""
    assert test in near([changed])


def test_what_no_test_reaches_is_near_none() -> None:
    """Files of the top level are everybody's."""
    assert near(["LICENSE"]) == []
