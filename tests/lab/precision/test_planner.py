"""Precision plans: the cheapest format that keeps the limit, against products that are really rounded, and their losses."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ampwatch.errors import SettingsError
from ampwatch.lab.precision import planner
from ampwatch.lab.precision.plan import Plan, ProductPlan, to_json
from ampwatch.lab.precision.products import HEADROOM, OPERANDS, CastLoss, cast_loss, product_db
from ampwatch.numerics.blocks import BlockHistogram
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import FORWARD, GRAD_INPUT, GRAD_WEIGHT, LayerRecord, Operand
from tests.numerics.block_oracle import counted, operand_of, rounded, sqnr_db
from tests.numerics.block_oracle import rounded as cast
from tests.numerics.oracle import histogram_of
from tests.workshop.records import IDENTITY

ROWS, INNER, COLUMNS = 128, 64, 96


def _tensors(seed: int = 0) -> dict[Operand, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        Operand.INPUT: (ROWS, INNER),
        Operand.WEIGHT: (COLUMNS, INNER),
        Operand.GRAD_OUTPUT: (ROWS, COLUMNS),
    }
    return {o: torch.randn(shape, generator=generator).double() for o, shape in shapes.items()}


def _layer(tensors: dict[Operand, torch.Tensor], name: str = "up", order: int = 0) -> LayerRecord:
    return LayerRecord(
        module=name,
        kind="Linear",
        layer="linear",
        order=order,
        rows=ROWS,
        input_elements=ROWS * INNER,
        inner=INNER,
        columns=COLUMNS,
        groups=1,
        has_grad_input=True,
        dtype="bfloat16",
        source="",
        operands=[operand_of(o, t) for o, t in tensors.items()],
    )


def _box(*layers: LayerRecord) -> Box:
    """Return what is known of a run: the layers, and a last one, which has to stay wide."""
    last = replace(_layer(_tensors(9), "head", order=99), operands=[])
    return Box(IDENTITY, layers=[*layers, last])


def plan_of(box: Box, **wanted: Any) -> Plan:
    return planner.plan_of(box, planner.checked(**wanted))


def _products(plan: Plan) -> dict[str, ProductPlan]:
    return {p.product: p for p in plan.layers[0].products}


def _really(tensors: dict[Operand, torch.Tensor], product: str, formats: tuple[str, ...]) -> float:
    """Return the ratio of signal to noise of a product in float64 of operands that were cast."""
    a, b = (tensors[o] for o in OPERANDS[product])
    c, d = (rounded(x, f) for x, f in zip((a, b), formats, strict=True))
    if product == FORWARD:
        return sqnr_db(a @ b.t(), c @ d.t())
    if product == GRAD_INPUT:
        return sqnr_db(a @ b, c @ d)
    return sqnr_db(a.t() @ b, c.t() @ d)


@pytest.mark.each_commit
@pytest.mark.parametrize("limit", [10.0, 16.3, 20.0, 26.0, 40.0, 60.0])
@pytest.mark.parametrize("shape", ["normal", "spread"])
def test_the_cheapest_format_that_keeps_the_limit_is_chosen(limit: float, shape: str) -> None:
    """By brute force: all formats are tried on the tensors themselves, from the narrowest up."""
    tensors = _tensors()
    if shape == "spread":
        generator = torch.Generator().manual_seed(5)
        for operand, values in tensors.items():
            tensors[operand] = values * torch.exp2(torch.randn(values.shape, generator=generator))
    order = ("mxfp4", "nvfp4", "float8_e4m3fn", "mxfp8_e4m3", "bfloat16", "float16", "float32")
    products = _products(
        plan_of(_box(_layer(tensors)), limit=limit, max_flushed=1.0, formats=order)
    )
    for product, planned in products.items():
        ratios = {name: _really(tensors, product, (name, name)) for name in order}
        chosen = planned.formats[0]
        # Foretold to within 1.5 dB: what is nearer to the limit than that may fall either way.
        assert ratios[chosen] > limit - 1.5
        assert planned.sqnr_db == pytest.approx(ratios[chosen], abs=1.5) or chosen == "float32"
        assert all(ratios[name] < limit + 1.5 for name in order[: order.index(chosen)])


def test_the_next_cheaper_format_and_why_it_will_not_do_are_told() -> None:
    """With the losses of both operands; nothing where the cheapest of all will do."""
    box = _box(_layer(_tensors()))
    strict = _products(plan_of(box, limit=20))[FORWARD]
    loose = _products(plan_of(box, limit=5))[FORWARD]

    assert strict.format == "float8_e4m3fn"
    assert strict.cheaper == "nvfp4"
    assert "dB (input 2" in strict.why
    assert (loose.format, loose.cheaper, loose.why) == ("mxfp4", "", "")


def test_a_format_that_flushes_too_much_is_passed_over() -> None:
    """Small values among large ones are no noise to speak of, and may be all that there is to learn."""
    tensors = _tensors()
    tensors[Operand.GRAD_OUTPUT][:, ::2] *= 2.0**-22
    box = _box(_layer(tensors))
    formats = ("float8_e4m3fn", "bfloat16")
    strict = _products(plan_of(box, formats=formats))
    loose = _products(plan_of(box, formats=formats, max_flushed=0.6))

    assert strict[FORWARD].format == "float8_e4m3fn"
    assert strict[GRAD_WEIGHT].format == "bfloat16"
    assert "% of grad_output become zero" in strict[GRAD_WEIGHT].why
    assert loose[GRAD_WEIGHT].format == "float8_e4m3fn"
    assert loose[GRAD_WEIGHT].flushed_share == pytest.approx(0.5, abs=0.05)


def test_gradients_may_have_the_range_of_e5m2_beside_the_digits_of_e4m3() -> None:
    """Which libraries call hybrid."""
    tensors = _tensors()
    tensors[Operand.GRAD_OUTPUT][:, ::2] *= 2.0**-22
    products = _products(
        plan_of(_box(_layer(tensors)), formats=("float8_e4m3fn", "float8_e5m2", "bfloat16"))
    )

    assert products[FORWARD].formats == ("float8_e4m3fn", "float8_e4m3fn")
    assert products[GRAD_WEIGHT].formats == ("float8_e5m2", "float8_e4m3fn")


def test_the_worst_phase_decides() -> None:
    """Gradients that were wide at the start had to be trained as well."""
    layer = _layer(_tensors())
    wide = _tensors()[Operand.GRAD_OUTPUT]
    wide[:, ::2] *= 2.0**-22
    layer.operands.append(operand_of(Operand.GRAD_OUTPUT, wide, step=2000))
    plan = plan_of(_box(layer), formats=("float8_e4m3fn", "bfloat16"))

    assert _products(plan)[GRAD_INPUT].format == "bfloat16"
    assert [(p.first, p.steps) for p in plan.phases] == [(0, (3,)), (1024, (2000,))]
    assert "from step 1024: 1 step (2000 to 2000)" in plan.table()


def test_float16_is_judged_with_a_loss_scale_that_all_gradients_bear() -> None:
    """Whatever scale they were measured with."""
    tensors = _tensors()
    tensors[Operand.GRAD_OUTPUT] *= 2.0**-20
    formats = ("bfloat16", "float16", "float32")
    plain = plan_of(_box(_layer(tensors)), limit=60, formats=formats)
    layer = _layer(tensors)
    layer.operands[2] = operand_of(Operand.GRAD_OUTPUT, tensors[Operand.GRAD_OUTPUT], scale=2.0**10)
    scaled = plan_of(_box(layer), limit=60, formats=formats)
    large = _tensors()
    large[Operand.GRAD_OUTPUT] *= 2.0**10
    low = plan_of(_box(_layer(large)), limit=60, formats=formats)

    assert plain.loss_scale == scaled.loss_scale == 2.0**16
    assert _products(plain)[GRAD_INPUT].format == _products(scaled)[GRAD_INPUT].format == "float16"
    assert _products(plain)[GRAD_INPUT].sqnr_db == _products(scaled)[GRAD_INPUT].sqnr_db
    largest = float(large[Operand.GRAD_OUTPUT].abs().amax())
    assert low.loss_scale * largest < 65504 / 8 < 2 * low.loss_scale * largest


def test_last_layers_routers_and_convolutions_stay_wide() -> None:
    """Whatever their ranges; a layer whose name has a router in the middle of a word does not."""
    tensors = _tensors()
    names = ["experts.router", "mlp.gate", "gate_proj"]
    layers = [_layer(tensors, name, order) for order, name in enumerate(names)]
    layers.append(replace(_layer(tensors, "stem", 7), kind="WSConv2d", layer="convolution"))
    layers.append(_layer(tensors, "head", 100))
    plan = plan_of(Box(IDENTITY, layers=layers), limit=5)

    assert [layer.bits for layer in plan.layers] == [16, 16, 4, 16, 16]
    assert "router" in plan.layers[0].why_wide
    assert "last layer" in plan.layers[4].why_wide
    assert "no convolution" in plan.layers[3].products[0].why


def test_norms_stay_in_float32() -> None:
    """They are listed with their reason."""
    norm = replace(_layer({}, "norm"), kind="LayerNorm", layer="")
    plan = plan_of(_box(_layer(_tensors()), norm))

    assert [(k.module, k.dtype) for k in plan.kept] == [("norm", "float32")]
    assert "float32   LayerNorm: norm." in plan.table()


def test_dimensions_that_tensor_cores_do_not_take_are_no_gain() -> None:
    """The gradient of the weight sums over rows as well."""
    odd = replace(_layer(_tensors()), rows=100)
    products = _products(plan_of(_box(odd)))

    assert products[FORWARD].format == "float8_e4m3fn"
    assert products[GRAD_WEIGHT].format == "bfloat16"
    assert "a dimension of 100 is no multiple of" in products[GRAD_WEIGHT].why


def test_what_was_not_measured_is_not_guessed() -> None:
    """It is said in the row and in a note, and the layer stays as it is."""
    layer = _layer(_tensors())
    layer.operands = [o for o in layer.operands if o.operand is not Operand.INPUT]
    plan = plan_of(_box(layer))
    products = _products(plan)

    assert products[FORWARD].formats == ()
    assert products[FORWARD].why == "input not measured"
    assert products[GRAD_INPUT].format == "float8_e4m3fn"
    assert plan.layers[0].bits == 0
    assert any("an operand was not measured (up, head)" in note for note in plan.notes)


def test_without_blocks_no_block_scaled_format_is_planned() -> None:
    """Exponents alone do not tell."""
    layer = _layer(_tensors())
    layer.operands = [replace(o, blocks=()) for o in layer.operands]
    plan = plan_of(_box(layer), limit=5)

    assert _products(plan)[FORWARD].format == "float8_e4m3fn"
    assert _products(plan)[FORWARD].why == "nvfp4: blocks were not measured"
    assert any("blocks were not measured" in note for note in plan.notes)


def test_a_gpu_decides_what_is_multiplied_and_what_is_gained() -> None:
    """By the peaks of the datasheet: FP8 is twice as fast as bfloat16 where arithmetic is the limit."""
    big = replace(_layer(_tensors()), rows=8192, inner=8192, columns=8192, input_elements=8192**2)
    layers = [
        big,
        replace(big, module="head", order=5, rows=16, inner=16, columns=16, input_elements=256),
    ]
    box = Box(IDENTITY, layers=layers)
    h100, a100 = plan_of(box, gpu="h100", limit=5), plan_of(box, gpu="A100", limit=5)
    b200 = plan_of(box, gpu="B200", limit=5)

    assert _products(h100)[FORWARD].format == "float8_e4m3fn"
    assert _products(h100)[FORWARD].why == "mxfp8_e4m3: H100 does not multiply it"
    assert h100.speedup == pytest.approx(2.0, rel=0.01)
    assert _products(a100)[FORWARD].format == "bfloat16"
    assert a100.speedup == pytest.approx(1.0)
    assert b200.speedup == pytest.approx(4.0, rel=0.01)
    assert plan_of(box).speedup is None


def test_flops_and_bytes_are_those_of_the_shapes() -> None:
    """Two FLOPs for each multiplication and addition; operands in their format, the result in 16 bits."""
    product = _products(plan_of(_box(_layer(_tensors()))))[FORWARD]

    assert product.flops == 2 * ROWS * INNER * COLUMNS
    assert product.bytes_now == 2 * (ROWS * INNER + INNER * COLUMNS + ROWS * COLUMNS)
    assert product.bytes_then == ROWS * INNER + INNER * COLUMNS + 2 * ROWS * COLUMNS


def test_a_limit_that_no_format_meets_leaves_the_layer_as_it_is() -> None:
    """And says what to do."""
    product = _products(plan_of(_box(_layer(_tensors())), limit=200))[FORWARD]

    assert product.format == "as is"
    assert product.why.startswith("no format keeps the limit; float32: 1")
    assert product.why.endswith("set a lower limit, or allow other formats")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"limit": -1}, "from 0 to 1000, got -1"),
        ({"limit": math.nan}, "from 0 to 1000, got nan"),
        ({"limit": "20"}, "from 0 to 1000, got '20'"),
        ({"max_flushed": 1.5}, "from 0 to 1, got 1.5"),
        ({"formats": ["float8"]}, "got 'float8'.*did you mean"),
        ({"formats": []}, "at least one format"),
        ({"gpu": "A1000"}, "expected a GPU of"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], said: str) -> None:
    """With what would."""
    with pytest.raises(SettingsError, match=said):
        plan_of(_box(_layer(_tensors())), **arguments)


@pytest.mark.parametrize(
    ("box", "why"),
    [
        (Box(IDENTITY, written_by="daemon"), "the report is of a process that died"),
        (Box(IDENTITY), "no step in which layers are measured was watched yet"),
        (Box(IDENTITY, settings={"level": "light"}), "no layer is measured at level light"),
    ],
)
def test_where_no_layer_is_known_the_one_reason_is_said_and_what_to_do(box: Box, why: str) -> None:
    """Nobody who has just begun reads of processes that died."""
    plan = plan_of(box)

    assert plan.why_not.startswith(f"{why}")
    assert plan.why_not.endswith("lab=True and a watched model, after some hundred steps")
    assert sum(words in plan.why_not for words in ("died", "yet", "at level light")) == 1
    assert plan.table() == f"No precision plan: {plan.why_not}\n"


def test_a_model_without_layers_says_so() -> None:
    """It was called, and multiplies nothing that is planned."""
    norm = replace(_layer({}, "norm"), kind="LayerNorm", layer="")

    assert "no linear or convolutional layer" in plan_of(Box(IDENTITY, layers=[norm])).why_not


def test_a_plan_is_json_without_numbers_that_json_lacks() -> None:
    """Zeros have no noise: infinite, which is a word."""
    layer = _layer({o: torch.zeros_like(t) for o, t in _tensors().items()})
    content = json.loads(to_json(plan_of(_box(layer))), parse_constant=pytest.fail)
    product = content["layers"][0]["products"][0]

    assert product["sqnr_db"] == "infinity"
    assert product["formats"] == ["mxfp4", "mxfp4"]
    assert content["limit_db"] == 20


def test_a_long_plan_is_cut_in_the_table() -> None:
    """With how many are left out."""
    layers = [
        _layer(_tensors(), f"blocks.{n}.with.a.very.long.name.for.a.module.up", n) for n in range(5)
    ]
    text = plan_of(_box(*layers)).table(lines=2)

    assert "... and 4 more layers" in text
    assert text.isascii()
    assert max(map(len, text.splitlines()[4:12])) < 200


PLAIN = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
BLOCK_SCALED = ("mxfp4", "nvfp4", "mxfp8_e4m3")


def _tensor(kind: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(128, 128, generator=generator)
    made = {
        "normal": values,
        "relu": values.clamp(min=0),
        "small": values * 1e-6,
        "spread": values * torch.exp2(torch.randn(128, 128, generator=generator)),
    }
    return made[kind].double()


@cache
def _measured(
    values: tuple[float, ...],
) -> tuple[ExponentHistogram, list[BlockHistogram]]:
    largest = max(map(abs, values))
    blocks = [[values[i : i + n] for i in range(0, len(values), n)] for n in (16, 32)]
    counts = [counted(of, n, largest) for n, of in zip((16, 32), blocks, strict=True)]
    return histogram_of(values), counts


def _foretold(values: torch.Tensor, name: str) -> CastLoss:
    loss = cast_loss(*_measured(tuple(values.float().double().reshape(-1).tolist())), FORMATS[name])
    assert loss is not None
    return loss


@pytest.mark.parametrize("kind", ["normal", "relu", "small", "spread"])
@pytest.mark.parametrize("name", PLAIN)
def test_the_noise_of_a_plain_cast_is_known_to_within_a_decibel(kind: str, name: str) -> None:
    """Those of block-scaled formats are tested with `block_casts`."""
    values = _tensor(kind).float().double()
    rounded = cast(values, name)
    loss = _foretold(values, name)

    assert loss.sqnr_db == pytest.approx(sqnr_db(values, rounded), abs=1.0)
    flushed = ((rounded == 0) & (values != 0)).sum() / (values != 0).sum()
    assert loss.flushed_share == pytest.approx(float(flushed), abs=1e-12)


@pytest.mark.parametrize("pair", [("normal", "relu"), ("spread", "normal"), ("relu", "small")])
@pytest.mark.parametrize("name", [*PLAIN, *BLOCK_SCALED])
def test_the_noise_of_a_product_is_known_to_within_its_stated_error(
    pair: tuple[str, str], name: str
) -> None:
    """Of a matmul in float64 of operands that were cast, beside that of the operands themselves."""
    a, b = _tensor(pair[0], 1), _tensor(pair[1], 2)
    exact, rounded = a @ b.t(), cast(a, name) @ cast(b, name).t()
    foretold = product_db(_foretold(x, name).sqnr_db for x in (a, b))

    assert foretold == pytest.approx(sqnr_db(exact, rounded), abs=1.5)


def test_what_would_overflow_with_some_headroom_is_refused() -> None:
    """FP8 has a scale of its own, and bfloat16 the range of float32."""
    fits = torch.full((64,), 65504.0 / 2**HEADROOM).double()
    overflows = fits * 1.01

    assert _foretold(fits, "float16").sqnr_db > 60
    assert _foretold(overflows, "float16").sqnr_db == -math.inf
    assert _foretold(overflows, "float8_e4m3fn").sqnr_db > 20
    assert _foretold(overflows, "bfloat16").sqnr_db > 40


def test_zeros_lose_nothing_and_unmeasured_blocks_are_not_guessed() -> None:
    """Nothing but zeros is exact in any format."""
    assert cast_loss(histogram_of([0.0] * 64), (), FORMATS["nvfp4"]) == CastLoss(math.inf, 0.0)
    assert cast_loss(histogram_of([1.0] * 64), (), FORMATS["nvfp4"]) is None
    assert cast_loss(histogram_of([1.0] * 64), (), FORMATS["float16"]) is not None


def test_noise_of_operands_adds_up() -> None:
    """Two alike lose 3 dB; one without noise adds nothing; one that overflows leaves nothing."""
    assert product_db([20.0, 20.0]) == pytest.approx(20 - 10 * math.log10(2))
    assert product_db([20.0, math.inf]) == pytest.approx(20)
    assert product_db([math.inf, math.inf]) == math.inf
    assert product_db([20.0, -math.inf]) == -math.inf
