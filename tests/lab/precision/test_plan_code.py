"""Plans as code: it compiles, and does what the plan says with what is installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.errors import SettingsError
from ampwatch.lab.precision.plan import LayerPlan, Plan, ProductPlan
from ampwatch.wire.records import PRODUCTS

FP8, E5M2 = ("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")
BF16, FP32, FP4 = ("bfloat16", "bfloat16"), ("float32", "float32"), ("nvfp4", "nvfp4")
MX, FP16 = ("mxfp8_e4m3", "mxfp8_e4m3"), ("float16", "float16")


def _layer(name: str, *formats: tuple[str, ...], layer: str = "linear") -> LayerPlan:
    formats = formats * 3 if len(formats) == 1 else formats
    products = tuple(
        ProductPlan(p, f, 30.0, 0.0, "", "", 1, 1.0, 1.0, None, None)
        for p, f in zip(PRODUCTS, formats, strict=True)
    )
    return LayerPlan(name, "Any", layer, "bfloat16", products, "", (1,))


def _plan(*layers: LayerPlan) -> Plan:
    return Plan(run='a "run"\n', limit_db=20.0, layers=layers, loss_scale=1024.0)


def _run(code: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(code, "plan", "exec"), space)
    return space


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for torchao, which records what it was called with."""
    module: Any = ModuleType("torchao.float8")
    module.Float8LinearConfig = SimpleNamespace
    module.convert_to_float8_training = lambda model, **options: (model, options)
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", module)


@pytest.mark.usefixtures("torchao")
def test_torchao_converts_linear_layers_that_need_no_more_than_eight_bits() -> None:
    """In all three products; what it cannot do is in comments."""
    plan = _plan(
        _layer("up", FP8), _layer("down", FP8, BF16, FP8), _layer("small", FP4),
        _layer("conv", FP8, layer="convolution"), _layer("open", FP8, (), FP8),
    )  # fmt: skip
    code = plan.code("torchao")
    space = _run(code)
    linear = nn.Linear(1, 1)

    wanted = ("up", "down", "small", "conv", "open")
    assert [n for n in wanted if space["module_filter_fn"](linear, n)] == ["up", "small"]
    assert not space["module_filter_fn"](nn.Conv2d(1, 1, 1), "up")
    _model, options = space["convert"](linear)
    assert options["module_filter_fn"] is space["module_filter_fn"]
    assert "# Planned in less than FP8, and in FP8 here:\n#   small" in code
    assert "#   conv" in code
    assert "#   down\n#   open" in code
    assert "torchao is not installed" in code


def test_transformer_engine_has_a_recipe_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which has the formats of its products."""
    recipes: Any = ModuleType("transformer_engine.common.recipe")
    for name in ("Float8CurrentScaling", "MXFP8BlockScaling", "NVFP4BlockScaling"):
        setattr(recipes, name, lambda name=name, **options: (name, options))
    recipes.Format = SimpleNamespace(E4M3="E4M3", HYBRID="HYBRID")
    engine: Any = ModuleType("transformer_engine.pytorch")
    engine.fp8_autocast = lambda **options: options
    names = ("transformer_engine", "transformer_engine.common")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipes)
    sys.modules["transformer_engine"].pytorch = engine  # type: ignore[attr-defined]

    plan = _plan(
        _layer("a", FP8), _layer("b", FP8, E5M2, FP8), _layer("c", MX), _layer("d", FP4),
        _layer("e", BF16), _layer("f", FP8, FP4, FP4),
    )  # fmt: skip
    space = _run(plan.code("te"))

    assert space["RECIPES"] == {
        "a": ("Float8CurrentScaling", {"fp8_format": "E4M3"}),
        "b": ("Float8CurrentScaling", {"fp8_format": "HYBRID"}),
        "c": ("MXFP8BlockScaling", {}),
        "d": ("NVFP4BlockScaling", {}),
        "f": ("Float8CurrentScaling", {"fp8_format": "E4M3"}),
    }
    assert space["region"]("e") == {"enabled": False, "fp8_recipe": None}
    assert space["region"]("a")["enabled"] is True


def test_autocast_keeps_in_float32_what_needs_it() -> None:
    """A real model under it: one layer computes in float32, the others in 16 bits."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    space = _run(_plan(_layer("0", FP8), _layer("1", FP32), _layer("2", BF16)).code("autocast"))
    seen: list[torch.dtype] = []
    for layer in model:
        layer.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    space["keep_wide"](model)
    with space["region"]("cpu"):
        model(torch.ones(1, 4)).sum().backward()

    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert "scaler" not in space


def test_autocast_to_float16_has_a_scaler() -> None:
    """One region has one dtype: that which some product needs."""
    code = _plan(_layer("0", FP16), _layer("1", BF16)).code("autocast")
    space = _run(code)

    assert space["DTYPE"] is torch.float16
    assert isinstance(space["scaler"]("cpu"), torch.amp.GradScaler)
    assert "# Planned in bfloat16, in float16 here: one region has one dtype:\n#   1" in code
    assert "loss scale of 1024" in code


@pytest.mark.parametrize("kind", ["torchao", "te", "autocast"])
def test_no_name_breaks_out_of_the_code(kind: str) -> None:
    """Names of modules and runs may be anything."""
    code = _plan(_layer('x"""\nimport os #', FP8), _layer("y'\n", BF16)).code(kind)

    tree = compile(code, "plan", "exec")
    assert "os" not in tree.co_names
    assert all(not line.startswith("import os") for line in code.splitlines())


def test_another_library_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(SettingsError, match=r"torchao, te, autocast, got 'torcha'.*did you mean"):
        _plan().code("torcha")
