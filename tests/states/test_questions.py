"""Three questions of somebody who opens the page for the first time are answered with at most one click."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# The browser of the integration tests, which each module of tests has its own of.
from tests.integration.conftest import browser  # noqa: F401
from tests.states.questions import QUESTIONS, answer

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

    from tests.states.played import Played

pytestmark = pytest.mark.services

MAX_WORDS = 80


@pytest.mark.parametrize("size", ["laptop", "phone"])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_question_is_answered(
    browser: WebDriver,  # noqa: F811
    plays: dict[str, Played],
    asked: str,
    size: str,
) -> None:
    """What is said is on the screen, in words, and it is not much to read."""
    question = QUESTIONS[asked]
    took = answer(browser, plays[question.state], question, size)

    assert question.answer in took.text
    assert took.clicks <= 1
    assert took.words <= MAX_WORDS


def test_the_headline_answers_without_a_click_or_scrolling(
    browser: WebDriver,  # noqa: F811
    plays: dict[str, Played],
) -> None:
    """Which layer, and which rank."""
    for asked in ("Which layer broke my run?", "Which rank is different?"):
        question = QUESTIONS[asked]
        took = answer(browser, plays[question.state], question, "laptop")

        assert (took.clicks, took.screens) == (0, 0)
