"""The page of each scripted state looks as in its pictures, on three sizes of screens, in both themes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.alerts.rules import ROOT
from tests.states.pictures import (
    KEPT,
    Camera,
    Shot,
    difference,
    kept,
    opened,
    sentence,
    shots_of,
    shown,
)
from tests.states.played import Played
from tests.states.table import TABLE

pytestmark = pytest.mark.nightly

FAILED = ROOT / "build" / "pictures"

LAPTOP = Shot("storm", "laptop", "light")
PHONE = Shot("storm", "phone", "dark")
DESKTOP = Shot("storm", "desktop", "dark")
TALL = Shot("storm", "tall-laptop", "light")

FAULTS = {
    "a tile is not there": (LAPTOP, "#figures > :nth-child(3) { visibility: hidden }"),
    "a tile has nothing in it": (DESKTOP, "#figures > :nth-child(5) > * { visibility: hidden }"),
    "tiles have changed places": (PHONE, "#figures > :nth-child(2) { order: -1 }"),
    "the state has the colour of health": (DESKTOP, ".level { color: #1a6e3c !important }"),
    "the edge of the headline has it": (DESKTOP, "#headline { border-color: #6fcf97 !important }"),
    "the headline is missing": (DESKTOP, "#headline { display: none }"),
    "the cause is missing": (LAPTOP, "#run-cause { visibility: hidden }"),
    "the list of runs lies over the run": (
        LAPTOP,
        "#runs { display: block !important; position: fixed; left: 0; top: 3rem; height: 20rem; width: 16rem; background: var(--raised); }",
    ),
    "the page is wider than the phone": (PHONE, "#figures { width: 30rem }"),
    "the dark theme is light": (PHONE, ":root { color-scheme: light !important }"),
    "the line of the loss scale is not drawn": (LAPTOP, "#chart-scale path { stroke: none }"),
    "a chart is not drawn": (DESKTOP, "#chart-skips svg { visibility: hidden }"),
    "the cells of the map are not drawn": (TALL, "#map-cells { visibility: hidden }"),
    "the findings are cut": (TALL, "#findings { height: 1rem; overflow: hidden }"),
    "exponents have no colours": (TALL, "#chart-exponents { filter: grayscale(1) }"),
}
"""What may go wrong with a style, and on which screen it has to be seen."""

PLANT = """
const sheet = document.createElement("style");
sheet.id = "planted";
sheet.textContent = arguments[0];
document.head.append(sheet);
"""
UNPLANT = "document.getElementById('planted').remove()"


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Camera]:
    with opened(tmp_path_factory.mktemp("browser")) as browser:
        yield Camera(browser)


@pytest.mark.services
@pytest.mark.parametrize("state", [state for state in TABLE if shots_of(state)])
def test_the_page_looks_as_it_did(camera: Camera, plays: dict[str, Played], state: str) -> None:
    """Three sizes, two themes; some pages from top to bottom."""
    wrong = []
    with shown(camera, state, plays[state]):
        for shot in shots_of(state):
            camera.aim(shot)
            taken, found = camera.take_like(kept(shot.path))
            if found is not None:
                wrong.append(sentence(shot, taken, found, FAILED))

    assert not wrong, "\n".join(wrong)


@pytest.mark.services
def test_a_planted_fault_is_noticed(camera: Camera, plays: dict[str, Played]) -> None:
    """Each of them, on a page that is as it should be before and after."""
    unnoticed = []
    with shown(camera, "storm", plays["storm"]):
        for fault, (shot, style) in FAULTS.items():
            camera.aim(shot)
            before = camera.take_like(kept(shot.path))[1]
            camera.browser.execute_script(PLANT, style)
            after = difference(kept(shot.path), camera.take())
            camera.browser.execute_script(UNPLANT)
            if before is not None or after is None:
                unnoticed.append(f"{fault}: {before=} {after=}")

    assert not unnoticed, "\n".join(unnoticed)


def test_every_picture_is_of_a_state() -> None:
    """None is left over, none is missing, and all together are small."""
    there = set(KEPT.iterdir())

    assert there == {shot.path for state in TABLE for shot in shots_of(state)}
    assert sum(path.stat().st_size for path in there) < 2.5e6
