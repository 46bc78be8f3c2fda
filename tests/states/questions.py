"""Three questions of somebody who opens the page for the first time: what it takes until they are answered.

``python -m tests.states.questions`` prints the table of docs/page.md; it wants Chromium.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.host.daemon.parts import eventually
from tests.states.pictures import SIZES, Camera, Shot, opened
from tests.states.score import play
from tests.states.serving import served

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

    from tests.states.played import Played


class Question(NamedTuple):
    """What somebody wants to know.

    Attributes:
        state: The state in which it is asked.
        clicks: Selectors of what is clicked, in order.
        reads: Selectors of what is read, in order.
        answer: Words of the answer, in the last of these.
    """

    state: str
    clicks: tuple[str, ...]
    reads: tuple[str, ...]
    answer: str


QUESTIONS = {
    "Which layer broke my run?": Question(
        "storm", (), ("#headline h1", "#run-cause", "#run-where"), "module encoder.gate"
    ),
    "Is float16 worth it here?": Question(
        "bf16",
        ("#whatif-formats label:has([value=float16])",),
        ("#whatif-title", "#whatif-formats", "#whatif-outcome"),
        "In float16",
    ),
    "Which rank is different?": Question(
        "one_rank_raised_of_eight", (), ("#headline h1", "#run-cause", "#run-where"), "rank 3 of 8"
    ),
}


class Answered(NamedTuple):
    """What it took.

    Attributes:
        clicks: How often something was clicked.
        screens: How far the page was scrolled. Unit: heights of the screen.
        words: How many words were read.
        seconds: From opening the page until the answer is on the screen, reading aside. Unit: s.
        text: The words of the last thing that was read.
    """

    clicks: int
    screens: float
    words: int
    seconds: float
    text: str


IS_SEEN = """
const box = document.querySelector(arguments[0])?.getBoundingClientRect();
return !!box && box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
"""
TEXT = "return document.querySelector(arguments[0]).innerText"
SCROLL = "document.querySelector(arguments[0]).scrollIntoView({block: 'start'}); return scrollY / innerHeight;"


def answer(browser: WebDriver, played: Played, question: Question, size: str) -> Answered:
    """Open the page where a daemon's address leads to, and find the answer.

    Raises:
        AssertionError: If it does not come on the screen.
    """
    camera = Camera(browser, "")
    browser.get("about:blank")
    camera.aim(Shot(question.state, size, "light"))
    *_, last = question.reads
    with served(played.daemon) as address:
        began = time.monotonic()
        browser.get(address)
        eventually(lambda: bool(browser.execute_script(TEXT, "#run-name")), "the page of a run")
        first = question.reads[0]
        screens = 0.0 if _seen(browser, first) else browser.execute_script(SCROLL, first)
        for each in question.clicks:
            browser.find_element("css selector", each).click()
        eventually(lambda: question.answer in browser.execute_script(TEXT, last), question.answer)
        assert _seen(browser, last), f"expected {last} on the screen, it is elsewhere"
        seconds = time.monotonic() - began
        text = [browser.execute_script(TEXT, each) for each in question.reads]
    words = sum(len(each.split()) for each in text)
    return Answered(len(question.clicks), screens, words, seconds, text[-1])


def _seen(browser: WebDriver, selector: str) -> bool:
    return bool(browser.execute_script(IS_SEEN, selector))


def main() -> None:
    """Print what each question takes, on a laptop and on a phone."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        plays = play(place / "stage", [question.state for question in QUESTIONS.values()])
        with opened(place / "browser", {}) as browser:
            for asked, question in QUESTIONS.items():
                for size in SIZES:
                    took = answer(browser, plays[question.state], question, size)
                    cells = (asked, size, took.clicks, f"{took.screens:.1f}", took.words)
                    sys.stdout.write(f"| {' | '.join(map(str, cells))} | {took.seconds:.1f} s |\n")


if __name__ == "__main__":
    main()
