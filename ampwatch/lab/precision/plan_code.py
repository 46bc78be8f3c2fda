"""A precision plan as a Python module, for the libraries that carry it out.

None of them carries out all of it. torchao converts linear layers whole, Transformer Engine has one
recipe for all three products of a layer, autocast knows 16 and 32 bits. Where products of a layer
differ, the layer is in the widest of their formats; what cannot be said is in the comments.
"""

from __future__ import annotations

import pprint
from importlib import metadata
from typing import TYPE_CHECKING

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.wire.records import LINEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.lab.precision.plan import LayerPlan, Plan

MAX_FP8_BITS = 8
"""Bits up to which a layer is trained in FP8, or in less."""


def code_of(plan: Plan, kind: str) -> str:
    """Return a plan as a Python module.

    Args:
        plan: The plan.
        kind: One of ``KINDS``.

    Raises:
        SettingsError: If it is another one, or there is no plan.
    """
    if kind not in KINDS:
        msg = f"expected code for {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
        raise SettingsError(msg)
    if plan.why_not:
        msg = f"expected a plan to write as code, got none: {plan.why_not}"
        raise SettingsError(msg)
    return "\n".join([*_head(plan, kind), "", *KINDS[kind](plan)]) + "\n"


def _head(plan: Plan, kind: str) -> list[str]:
    steps = sorted({step for phase in plan.phases for step in phase.steps})
    gpu = f", on {plan.gpu}" if plan.gpu else ""
    return [
        f'"""Precision plan of run {_word(plan.run)}{gpu}, for {kind}.',
        "",
        f"Written by ampwatch: the cheapest formats that keep {plan.limit_db:g} dB in steps {steps[0]} to {steps[-1]}."
        if steps
        else "Written by ampwatch: nothing was measured.",
        '"""',
    ]


def _torchao(plan: Plan) -> list[str]:
    linear = [layer for layer in plan.layers if layer.layer == LINEAR]
    narrow = [layer for layer in linear if _is_narrow(layer)]
    others = [x.module for x in plan.layers if _is_narrow(x) and x not in linear]
    below = [layer.module for layer in narrow if layer.bits < MAX_FP8_BITS]
    return [
        *_installed("torchao"),
        "# torchao trains a layer in float8_e4m3fn, and gradients of outputs in float8_e4m3fn or float8_e5m2.",
        *_said("# Planned in less than FP8, and in FP8 here:", below),
        *_said("# No linear layers, so torchao leaves them as they are:", others),
        *_said(
            "# Some product needs more than 8 bits:", [x.module for x in linear if x not in narrow]
        ),
        "from torch import nn",
        "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
        "",
        *_names("FLOAT8", narrow),
        "",
        "",
        "def module_filter_fn(module: nn.Module, fqn: str) -> bool:",
        '    """Return whether torchao converts a layer."""',
        "    return isinstance(module, nn.Linear) and fqn in FLOAT8",
        "",
        "",
        "def convert(model: nn.Module) -> nn.Module:",
        '    """Convert the model in place; the rest of it trains under autocast to bfloat16."""',
        "    return convert_to_float8_training(",
        "        model, config=Float8LinearConfig(), module_filter_fn=module_filter_fn",
        "    )",
    ]


def _te(plan: Plan) -> list[str]:
    recipes: dict[str, list[str]] = {}
    for layer in plan.layers:
        recipes.setdefault(_recipe(layer), []).append(layer.module)
    wide = recipes.pop("", [])
    convolutions = [x.module for x in plan.layers if _recipe(x) and x.layer != LINEAR]
    listed = {name: recipe for recipe, names in recipes.items() for name in names}
    used = sorted({recipe.partition("(")[0] for recipe in recipes} | {"Format"})
    return [
        *_installed("transformer_engine"),
        *_said("# In 16 bits or more, outside of any recipe:", wide),
        *_said("# Transformer Engine has no convolution; they stay as they are:", convolutions),
        "import transformer_engine.pytorch as te",
        f"from transformer_engine.common.recipe import {', '.join(used)}",
        "",
        "RECIPES = {",
        *(
            f"    {name!r}: {recipe},"
            for name, recipe in listed.items()
            if name not in convolutions
        ),
        "}",
        '"""Recipe of each te.Linear, by its qualified name."""',
        "",
        "",
        "def region(name: str):",
        '    """Return the context in which a layer is called: ``with region("blocks.0.up"): x = self.up(x)``."""',
        "    return te.fp8_autocast(enabled=name in RECIPES, fp8_recipe=RECIPES.get(name))",
    ]


def _recipe(layer: LayerPlan) -> str:
    """Return the recipe of Transformer Engine that has the formats of a layer; empty without one."""
    if not _is_narrow(layer):
        return ""
    families = {FORMATS[name].family for name in layer.formats}
    if families == {FormatFamily.FLOAT4}:
        # It trains in NVFP4 only, which is the finer one of the two.
        return "NVFP4BlockScaling()"
    if "mxfp8_e4m3" in layer.formats or "mxfp8_e5m2" in layer.formats:
        return "MXFP8BlockScaling()"
    word = "HYBRID" if "float8_e5m2" in layer.formats else "E4M3"
    return f"Float8CurrentScaling(fp8_format=Format.{word})"


def _autocast(plan: Plan) -> list[str]:
    wide = [x for x in plan.layers if x.bits > 16 or not x.bits]
    half = "float16" if any("float16" in x.formats for x in plan.layers) else "bfloat16"
    mixed = [x.module for x in plan.layers if x.bits == 16 and half not in x.formats]
    lines = [
        *_said(
            "# Planned in 8 bits or fewer, in 16 here:",
            [x.module for x in plan.layers if _is_narrow(x)],
        ),
        *_said(f"# Planned in bfloat16, in {half} here: one region has one dtype:", mixed),
        "import torch",
        "from torch import nn",
        "",
        f"DTYPE = torch.{half}",
        *_names("FLOAT32", wide),
        "",
        "",
        "def keep_wide(model: nn.Module) -> None:",
        '    """Have the layers of FLOAT32 leave autocast, with inputs in float32."""',
        "    for name in FLOAT32:",
        "        module = model.get_submodule(name)",
        "        module.forward = _outside(module.forward)",
        "",
        "",
        "def _outside(forward):",
        "    def run(x):",
        "        with torch.autocast(x.device.type, enabled=False):",
        "            return forward(x.float())",
        "",
        "    return run",
        "",
        "",
        "def region(device: str):",
        '    """Return the context of forward and loss; autocast itself keeps norms and losses in float32."""',
        "    return torch.autocast(device, dtype=DTYPE)",
    ]
    if half == "float16":
        lines += [
            "",
            "",
            "def scaler(device: str):",
            f'    """Return the scaler of gradients, which were judged with a loss scale of {plan.loss_scale:g}."""',
            "    return torch.amp.GradScaler(device)",
        ]
    return lines


KINDS: dict[str, Callable[[Plan], list[str]]] = {
    "torchao": _torchao,
    "te": _te,
    "autocast": _autocast,
}
"""Libraries that code is written for."""


def _is_narrow(layer: LayerPlan) -> bool:
    return 0 < layer.bits <= MAX_FP8_BITS


def _installed(package: str) -> list[str]:
    """Return a comment where a library is not installed: nothing here was tried with it then."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return [f"# {package} is not installed where this was written: try it on one step first."]
    return [f"# Written beside {package} {version}."]


def _said(words: str, names: Iterable[str]) -> list[str]:
    listed = [_word(name) for name in names]
    return [words, *(f"#   {name}" for name in listed)] if listed else []


def _word(name: str) -> str:
    """Return a name that ends neither a comment nor a docstring."""
    return name.encode("unicode_escape").decode().replace('"', "'") or "(the model)"


def _names(name: str, layers: Iterable[LayerPlan]) -> list[str]:
    listed = pprint.pformat([layer.module for layer in layers], width=96)
    return [f"{name} = frozenset(", *(f"    {line}" for line in listed.splitlines()), ")"]
