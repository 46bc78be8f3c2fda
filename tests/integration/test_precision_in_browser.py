"""Dtypes, tensor cores and GPUs on the page as users see them, in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import KernelTotal, OpTotal
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer, place_of_module  # noqa: F401 - fixtures
from tests.workshop.fleets import PRECISION
from tests.workshop.records import H100, census, kernel, op_row, window

pytestmark = [pytest.mark.nightly, pytest.mark.services]

SHARES = """return [...document.querySelectorAll(arguments[0])].map(
    (e) => [e.dataset.dtype, Math.round(100 * e.offsetWidth / e.parentElement.offsetWidth)])"""
ROWS = """return [...document.querySelectorAll(arguments[0])].map(
    (row) => [...row.children].map((cell) => cell.innerText.replaceAll("\\u202f", " ").trim()))"""


@pytest.fixture(scope="module")
def daemon(place: Place) -> Iterator[Daemon]:
    with place.daemon(AMPWATCH_GPU="demo") as daemon:
        yield daemon


@pytest.fixture
def rank(place: Place, request: pytest.FixtureRequest) -> Iterator[Trainer]:
    trainer = Trainer(place, run=request.node.name)
    trainer.train(3)
    yield trainer
    trainer.finish()


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon, rank: Trainer) -> Page:
    page = Page(browser, daemon)
    page.choose(rank.run)
    return page


def shown(page: Page, selector: str) -> bool:
    return bool(page.browser.find_element(By.CSS_SELECTOR, selector).is_displayed())


def rows(page: Page, table: str) -> list[list[str]]:
    return list(page.run(ROWS, f"{table} tbody tr"))


def has_rows(page: Page, table: str) -> Any:
    return eventually(lambda: rows(page, table), f"rows of {table}")


def test_the_mix_is_a_bar_with_words(rank: Trainer, page: Page) -> None:
    """Bars are as wide as the shares, have a key that says them, and a name for screen readers."""
    for record in PRECISION:
        rank.write(record)

    page.says("#mix-key", "float16 75 %")
    assert page.run(SHARES, "#mix .mix > span") == [["float16", 75], ["float32", 25]]
    bar = page.browser.find_element(By.CSS_SELECTOR, "#mix .mix")
    assert bar.get_attribute("aria-label") == "75 % float16, 25 % float32"
    page.says("#casts", "1.4 casts to each op that multiplies")
    page.says("#casts", "903 B read and written")
    assert rows(page, "#fallbacks") == [["inside autocast(enabled=False)", "2", "4 T"]]
    assert page.complaints() == []


def test_the_table_of_ops_is_by_op_module_or_dtype(rank: Trainer, page: Page) -> None:
    """By pointer and by keyboard, and the choice outlives the next census."""
    for record in PRECISION:
        rank.write(record)
    page.says("#ops", "addmm")  # the page may still show the rank of the test before
    lines = has_rows(page, "#ops")
    assert lines[0] == ["addmm", "float16", "6", "6 T", "75 %", "83.3 %", "100 B", ""]
    assert lines[1][-1] == "1 \N{MULTIPLICATION SIGN} inside autocast(enabled=False)"
    assert lines[2][:3] == ["_to_copy", "float32 → float16", "9"]

    page.click("#ops-by [value='module']")
    (head,) = rows(page, "#ops")
    assert head[0] == "head"
    assert head[1] == "75 % float16, 25 % float32"
    assert page.run(SHARES, "#ops .mix > span") == [["float16", 75], ["float32", 25]]

    page.browser.find_element(By.CSS_SELECTOR, "#ops-by [value='module']").send_keys(Keys.RIGHT)
    assert [line[0] for line in rows(page, "#ops")] == ["float16", "float32"]
    rank.write(census(op_row("mm", "bfloat16", calls=5)))
    eventually(lambda: [r[0] for r in rows(page, "#ops")] == ["bfloat16"], "the next census")


def test_a_module_without_flops_says_that_its_mix_is_of_bytes(rank: Trainer, page: Page) -> None:
    """A norm multiplies nothing, and is the root module here."""
    rank.write(census(op_row("", "float32", OpKind.OTHER, "", fallback=Fallback.FP32_LIST)))
    page.says("#mix-key", "No op with FLOPs was counted.")

    page.click("#ops-by [value='module']")

    (root,) = rows(page, "#ops")
    assert root[:3] == ["(root module)", "100 % float32 of the bytes", "1"]


def test_the_share_of_tensor_cores_is_a_band(rank: Trainer, page: Page) -> None:
    """Full up to what is certain, hatched up to what may be."""
    for record in PRECISION:
        rank.write(record)

    page.says("#kernels-sentence", "between 60 % and 80 % of the time of matmul kernels")
    page.says("#tensor-band-words", "unknown for 20 %, by the names of the kernels")
    assert page.run(SHARES, "#tensor-band .mix > span") == [["low", 60], ["maybe", 20]]
    page.says("#kernel-remarks", "1 % in kernels that assume less than full alignment")
    assert ["✓ tensor cores", "float16", "600 ms", "38.7 %"] in rows(page, "#kernel-totals")
    gemm, strange = rows(page, "#kernels")
    assert gemm[:4] == ["gemm", "✓ tensor cores", "float16", "mm"]
    assert gemm[-1] == "cutlass, for compute capability 9.0, aligned to 8"
    assert strange[1] == "? not known on which"


def test_on_a_cpu_the_newest_window_lists_ops(rank: Trainer, page: Page) -> None:
    """With one column for their names, and none that would be empty."""
    op = kernel("aten::addmm", "cpu", op="", family="", rule="", arch=0, align=0)
    rank.write(window(KernelTotal("cpu", "float16", 10**6), kernels=(op,)))

    page.says("#kernels-list-title", "Ops of the newest profiler window")
    heads = page.run(
        "return [...document.querySelectorAll('#kernels thead th')].map((e) => e.innerText)"
    )
    assert heads == ["Op", "Dtype", "Time", "Share", "Calls"]
    assert rows(page, "#kernels") == [["aten::addmm", "float16", "1 ms", "100 %", "1"]]
    assert not shown(page, "#tensor-band-box")

    rank.write(window(KernelTotal("tensor", "float16", 10**6), kernels=(kernel(),)))
    page.says("#kernels-list-title", "Kernels of the newest profiler window")
    eventually(lambda: len(rows(page, "#kernels")[0]) == 8, "the columns of kernels")


def test_the_ceiling_is_reported_or_why_it_is_not_known(rank: Trainer, page: Page) -> None:
    """The ceiling shows as soon as the device has a name."""
    flops = int(132 * 4096 * 1.83e9 * 0.05)
    rank.write(census(ops=(OpTotal(OpKind.MATMUL, "bfloat16", 1, flops, flops, 0),)))
    page.says("#ceiling-sentence", "The peak of this device is not known")
    assert not shown(page, "#ceiling-bar")

    rank.write(H100)

    page.says("#ceiling-sentence", "a step would take 50 ms; it takes 250 ms: 20 % of the ceiling")
    assert page.run(SHARES, "#ceiling-bar .mix > span") == [["low", 20]]


def test_gpus_are_reported_with_what_they_do_not_have(page: Page) -> None:
    """A row for each, a reason where there is no number."""
    table = has_rows(page, "#gpus")

    assert page.text("#gpus-sentence") == (
        "4 simulated to try this page: nothing is read from this machine"
    )
    assert [row[0].split("\n")[0] for row in table][:2] == ["GPU 0", "GPU 1"]
    first = table[0]
    assert first[1].endswith("%")
    assert "GB of" in first[3]
    assert "W of 700 W" in first[4]
    assert first[6].endswith("°C")
    assert [row[8] for row in table[:2]] == ["none", "none"]
    absent = [cell for row in table for cell in row if cell.startswith("\N{EN DASH}\n")]
    assert any("does not have it" in cell for cell in absent)
    assert page.complaints() == []


def test_the_gpu_of_the_shown_rank_stands_out(rank: Trainer, page: Page) -> None:
    """In demo mode that of its local rank, so that the join can be tried."""
    has_rows(page, "#gpus")

    eventually(
        lambda: (
            page.run(
                "return [...document.querySelectorAll('#gpus [data-selected=true] th')].map((e) => e.innerText.split('\\n')[0])"
            )
            == ["GPU 0"]
        ),
        "the GPU of the rank",
    )
    assert f"{rank.run} rank 0" in rows(page, "#gpus")[0][-1]


TROUBLED = """
const [values, xids, capabilities] = arguments[0];
const gpu = {index: 0, up: true, gone: "ok", name: "A", users: [], instances: {}, values, xids, capabilities};
const gpus = {host: "", reasons: {no_permission: "this user may not"}, gpus: {"GPU-a": gpu}};
return import("/static/gpus.js").then(({ showGpus }) => {
  showGpus(gpus, "", "", 10000);
  return [...document.querySelectorAll("#gpus tbody td")][7].innerText;
});
"""


@pytest.mark.parametrize(
    ("values", "xids", "words"),
    [
        ({}, {"79": [1, 9700.0]}, ["XID 79: 1 \N{MULTIPLICATION SIGN}, 5 min ago"]),
        (
            {"ecc": {"uncorrected": 3}, "remapped_rows": {"pending": 1, "failure": 1}},
            {"31": [4, 2800.0]},
            [
                "XID 31: 4 \N{MULTIPLICATION SIGN}, the newest 2 h ago",
                "3 uncorrected ECC errors",
                "rows of memory are replaced at the next reset",
                "a row of memory could not be replaced",
            ],
        ),
        (
            {"ecc": {"uncorrected": 0}},
            {},
            ["none in the readings", "XID errors: this user may not"],
        ),
    ],
)
def test_trouble_of_the_hardware_is_reported_in_words(
    page: Page, values: dict[str, Any], xids: dict[str, Any], words: list[str]
) -> None:
    """XID errors with their age, memory that breaks; none where it would be known."""
    has_rows(page, "#gpus")
    known = {"xid": "no_permission", "ecc": "ok", "remapped_rows": "ok"}

    text = page.run(TROUBLED, [values, xids, known])

    assert [
        line.removeprefix("\N{BLACK UP-POINTING TRIANGLE} ") for line in text.split("\n") if line
    ] == words
