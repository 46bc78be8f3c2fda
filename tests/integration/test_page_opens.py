"""The page opens in a browser and shows a run, its headline and what is wrong: the rest is for the night."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from ampwatch.wire.records import FindingRecord
from tests.host.daemon.parts import eventually
from tests.integration.browsing import Page, Trainer
from tests.workshop.records import finding

pytestmark = pytest.mark.services


def test_the_page_shows_a_run_and_its_root(trainer: Trainer, page: Page) -> None:
    """From health to the finding, with charts, asking nothing of another host, without a complaint."""
    trainer.train(30)
    page.says("#run h1", "✓ healthy, at step 29")
    eventually(
        lambda: page.run("return document.querySelectorAll('#charts svg:has(.grid)').length") == 4,
        "four charts",
    )

    found = finding("forward_overflow", "decoder", first_step=27, last_step=29, count=3)
    trainer.write(FindingRecord(found.finding))

    page.says("#run h1", "✖ failing, since step 27")
    page.says("#run-cause", "decoder")
    page.says("#findings", "since step 27")
    assert page.text("#run h1").startswith("train · ")
    resources = page.run("return performance.getEntriesByType('resource').map((r) => r.name)")
    assert {urlsplit(name).netloc for name in resources} == {urlsplit(page.url).netloc}
    assert page.complaints() == []
