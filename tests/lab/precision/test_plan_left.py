"""A training that leaves its plan is told apart from one that holds it, by tensors that are really cast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.lab.precision import plan_left
from ampwatch.lab.precision.plan_left import (
    MARGIN_DB,
    MAX_BLOCK_CASTS,
    MAX_CASTS,
    OperandsMeasured,
    PlanLeft,
    PlanMade,
    PlannedProduct,
)
from ampwatch.lab.precision.products import OPERANDS
from ampwatch.wire.records import Finding, Operand
from tests.numerics.block_oracle import operand_of, quantised, rounded, sqnr_db

ROWS, WIDTH = 64, 64
LIMIT, MAX_FLUSHED = 20.0, 0.1


def _normal(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()


def _spread(binades: float) -> Callable[[int], torch.Tensor]:
    """Rows whose sizes differ by powers of two."""

    def values(seed: int) -> torch.Tensor:
        sizes = torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(~seed & 0xFFFF))
        return _normal(seed) * torch.exp2(binades * sizes.double())

    return values


def _outlier(factor: float) -> Callable[[int], torch.Tensor]:
    """One feature that is larger than the others."""

    def values(seed: int) -> torch.Tensor:
        x = _normal(seed)
        x[:, 5] *= factor
        return x

    return values


def _flushed(values: torch.Tensor, cast: torch.Tensor) -> float:
    return float(((cast == 0) & (values != 0)).sum() / (values != 0).sum())


def _planned(name: str, module: str = "up") -> PlannedProduct:
    operands = Operand.GRAD_OUTPUT, Operand.WEIGHT
    return PlannedProduct(module, "grad_input", operands, (name, name), 28.9)


def _made(*products: PlannedProduct, limit: float = LIMIT, loss_scale: float = 65536.0) -> PlanMade:
    return PlanMade(10, limit, MAX_FLUSHED, loss_scale, products)


def _following(made: PlanMade) -> tuple[FindingBook, PlanLeft]:
    book = FindingBook(lambda _news: None)
    detector = PlanLeft(Shared(book))
    detector.follow(made)
    return book, detector


def _found(
    made: PlanMade, values: Callable[[int], torch.Tensor], steps: range = range(20, 60, 10)
) -> list[Finding]:
    """Return what is told of a layer whose gradients are as given, and whose weight is as usual."""
    book, detector = _following(made)
    weight = _normal(99)
    for step in steps:
        records = [
            operand_of(Operand.WEIGHT, weight, step),
            operand_of(Operand.GRAD_OUTPUT, values(step), step),
        ]
        for record in records:  # block-scaled formats are foretold one at a time
            detector.observe(OperandsMeasured(step, [("up", record)]))
    return book.findings


LEAVING = {
    ("float8_e4m3fn", "spread"): _spread(14.0),
    ("mxfp4", "outlier"): _outlier(200.0),
    ("nvfp4", "outlier"): _outlier(200.0),
}


@pytest.mark.parametrize(("name", "shape"), LEAVING)
def test_gradients_that_no_longer_fit_are_told(name: str, shape: str) -> None:
    """Which product of which layer, since when, and the share that a real cast makes zero."""
    values = LEAVING[name, shape]
    limit = LIMIT if name == "float8_e4m3fn" else 10.0
    (finding,) = _found(_made(_planned(name), limit=limit), values)

    newest = values(50)
    really = _flushed(newest, rounded(newest, name))
    assert really > MAX_FLUSHED + 0.1
    assert finding.evidence["flushed_share"] == pytest.approx(really, abs=0.02)
    assert (finding.where, finding.phase, finding.dtype) == ("up", "backward", name)
    assert (finding.first_step, finding.last_step) == (20, 50)
    assert (
        f"{really:.0%} of the grad_output would become zero for grad_input in {name}"
        in finding.summary
    )
    assert "plan of step 10" in finding.summary


@pytest.mark.each_commit
def test_a_product_that_falls_below_its_limit_is_told_in_db() -> None:
    """By both operands, as products of tensors that were really cast have it."""
    (finding,) = _found(_made(_planned("mxfp4"), limit=25.0), _normal)

    weight, gradient = _normal(99), _normal(50)
    product = quantised(gradient, "mxfp4") @ quantised(weight, "mxfp4")
    assert finding.evidence["sqnr_db"] == pytest.approx(
        sqnr_db(gradient @ weight, product), abs=1.5
    )
    assert "28.9 dB were planned and 25 dB are the limit" in finding.summary


HOLDING: dict[str, tuple[str, float, Callable[[int], torch.Tensor]]] = {
    "as usual": ("float8_e4m3fn", 20.0, _normal),
    "a hundred times larger": ("float8_e4m3fn", 20.0, lambda seed: 100 * _normal(seed)),
    "a spread that FP8 holds": ("float8_e4m3fn", 20.0, _spread(4.0)),
    "an outlier that FP8 holds": ("float8_e4m3fn", 20.0, _outlier(200.0)),
    "within the margin": ("mxfp4", 18.0, _normal),
    "every other batch": (
        "float8_e4m3fn",
        20.0,
        lambda seed: _spread(14.0)(seed) if seed % 20 else _normal(seed),
    ),
    "zeros": ("float8_e4m3fn", 20.0, lambda _seed: torch.zeros(ROWS, WIDTH).double()),
}


@pytest.mark.rotating
@pytest.mark.parametrize("case", HOLDING)
def test_what_holds_the_plan_is_left_alone(case: str) -> None:
    """Also what is larger, a little wider, or wide in single batches."""
    name, limit, values = HOLDING[case]

    assert _found(_made(_planned(name), limit=limit), values, range(20, 220, 10)) == []


def test_two_measurements_are_not_enough() -> None:
    """Nor is one that is seen by both products of a layer."""
    of_weight = PlannedProduct(
        "up", "grad_weight", (Operand.GRAD_OUTPUT, Operand.INPUT), ("float8_e4m3fn",) * 2, 28.9
    )
    made = _made(_planned("float8_e4m3fn"), of_weight)

    assert _found(made, _spread(14.0), range(20, 40, 10)) == []


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("product", "expected"), [("forward", "first"), ("grad_weight", "second")], ids=lambda x: x
)
def test_of_layers_that_leave_at_once_the_one_that_a_step_computes_first_is_named(
    product: str, expected: str, *, is_turned: bool
) -> None:
    """Whatever order they were measured in: backward begins at the last layer."""
    operand = OPERANDS[product][0]
    names = ["first", "second"]
    products = [
        PlannedProduct(name, product, OPERANDS[product], ("float8_e4m3fn",) * 2, 28.9)
        for name in names
    ]
    book, detector = _following(_made(*products))
    for step in range(20, 50, 10):
        record = operand_of(operand, _spread(14.0)(step), step)
        pairs = [(name, record) for name in names]
        detector.observe(OperandsMeasured(step, pairs[::-1] if is_turned else pairs))

    (finding,) = book.findings
    assert finding.where == expected


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_finding_is_of_one_product(*, is_turned: bool) -> None:
    """Of those that a layer computes of the same gradient, whatever order they were planned in."""
    products = [
        PlannedProduct("up", name, OPERANDS[name], ("float8_e4m3fn",) * 2, 28.9)
        for name in ("grad_input", "grad_weight")
    ]
    book, detector = _following(_made(*(products[::-1] if is_turned else products)))
    for step in range(20, 70, 10):
        pairs = [
            (Operand.GRAD_OUTPUT, _spread(14.0)(step)),
            (Operand.WEIGHT, _normal(step)),
            (Operand.INPUT, _normal(-step)),
        ]
        records = [("up", operand_of(operand, values, step)) for operand, values in pairs]
        detector.observe(OperandsMeasured(step, records))

    (finding,) = book.findings
    assert "become zero for grad_input in" in finding.summary
    assert "2 of 2 products" in finding.summary
    assert {"grad_output_db", "weight_db"} <= finding.evidence.keys()
    assert "input_db" not in finding.evidence


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_operand_that_brings_a_product_back_is_heard_first(*, comes_back: bool) -> None:
    """The third measurement outside and the one that ends it may be of one iteration."""
    x, nothing = _normal(1), torch.zeros(ROWS, WIDTH).double()
    one = sqnr_db(x, x.to(torch.float8_e5m2).double())
    limit = one - 1.5 + MARGIN_DB  # two of them have 3 dB less than one
    book, detector = _following(_made(_planned("float8_e5m2"), limit=limit))
    for step in (20, 30, 40, 50):
        weight = nothing if comes_back and step == 50 else x
        pairs = [(Operand.GRAD_OUTPUT, x), (Operand.WEIGHT, weight)]
        records = [("up", operand_of(operand, values, step)) for operand, values in pairs]
        detector.observe(OperandsMeasured(step, records))

    assert [f.kind for f in book.findings] == ([] if comes_back else ["plan_left"])


def test_weights_measured_again_are_no_new_word_about_gradients() -> None:
    """Each counts where it is what loses more."""
    book, detector = _following(_made(_planned("float8_e4m3fn")))
    gradient = operand_of(Operand.GRAD_OUTPUT, _spread(14.0)(20), 20)
    detector.observe(OperandsMeasured(20, [("up", gradient)]))
    for step in range(30, 90, 10):
        weight = operand_of(Operand.WEIGHT, _normal(99), step)
        detector.observe(OperandsMeasured(step, [("up", weight)]))

    assert book.findings == []


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 0), (1e5, 0), (1e-9, 1)])
def test_a_loss_scale_follows_gradients_in_float16(factor: float, expected: int) -> None:
    """Larger ones have a smaller scale; those that even the scale of the plan makes zero are told."""
    made = _made(_planned("float16"), limit=40.0)

    assert len(_found(made, lambda seed: factor * 0.01 * _normal(seed))) == expected


def test_activations_that_reach_the_end_of_float16_are_told() -> None:
    """Where they would overflow if they were twice as large; a plan asks for a factor of 8."""
    operands = Operand.INPUT, Operand.WEIGHT
    product = PlannedProduct("up", "forward", operands, ("float16", "float16"), 70.0)
    book, detector = _following(_made(product))
    for step in range(0, 90, 10):
        largest = 20000.0 if step < 40 else 40000.0
        values = _normal(step)
        values *= largest / values.abs().amax()
        detector.observe(OperandsMeasured(step, [("up", operand_of(Operand.INPUT, values, step))]))

    (finding,) = book.findings
    assert finding.first_step == 40
    assert "the input of forward in float16 overflows" in finding.summary
    assert "sqnr_db" not in finding.evidence  # it is infinite


def test_a_new_plan_takes_the_place_of_the_old_one() -> None:
    """What the new one allows is not told, and what leaves it is told anew."""
    book, detector = _following(_made(_planned("float8_e4m3fn")))
    detector.follow(_made(_planned("bfloat16")))
    gradients = _spread(14.0)
    for step in range(20, 60, 10):
        record = operand_of(Operand.GRAD_OUTPUT, gradients(step), step)
        detector.observe(OperandsMeasured(step, [("up", record)]))
    assert book.findings == []

    detector.follow(_made(_planned("float8_e4m3fn"))._replace(step=60))
    for step in range(70, 110, 10):
        record = operand_of(Operand.GRAD_OUTPUT, gradients(step), step)
        detector.observe(OperandsMeasured(step, [("up", record)]))
    assert [f.evidence["planned_step"] for f in book.findings] == [60]


@pytest.mark.parametrize(
    ("name", "limit", "most"),
    [("float8_e4m3fn", 20.0, MAX_CASTS), ("mxfp4", 10.0, MAX_BLOCK_CASTS)],
)
def test_few_operands_are_judged_at_a_time_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: float, most: int
) -> None:
    """However many layers there are, an iteration is not held up by them."""
    modules = [f"h.{n}" for n in range(most + 4)]
    judged: list[int] = []
    really = plan_left.cast_loss
    monkeypatch.setattr(plan_left, "cast_loss", lambda *args: (judged.append(0), really(*args))[1])
    book, detector = _following(_made(*(_planned(name, module) for module in modules), limit=limit))
    values = _outlier(200.0) if name == "mxfp4" else _spread(14.0)
    record = operand_of(Operand.GRAD_OUTPUT, values(0), 0)
    for step in range(6 * len(modules)):
        judged.clear()
        new = replace(record, step=step)
        detector.observe(OperandsMeasured(step, [(module, new) for module in modules]))
        assert len(judged) <= most

    assert book.findings[0].evidence["products_left"] == len(modules)
