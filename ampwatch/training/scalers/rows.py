"""The frameworks that scale losses by themselves: one row each.

A row says which class to look for, what it is to have, and what of it is the protocol of
``LossScaler``. Nothing here imports a framework: a class that the program has not loaded is not in use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.errors import AttachError
from ampwatch.training.model.living import instances_of
from ampwatch.training.scalers.loss_scaler import LossScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Row:
    """One framework's scaler, or optimizer that is none of torch's.

    Attributes:
        name: Name of the framework's package, and of the scaler in facts.
        module: Module that defines the class.
        kind: Name of the class.
        needs: Attributes that ``make`` reads and methods that it names.
        make: Returns the protocol of an instance.
        read_in: The version whose source was read.
        model: Returns the model that an instance trains; ``None`` where it does not know.
    """

    name: str
    module: str
    kind: str
    needs: tuple[str, ...]
    make: Callable[[Any], LossScaler]
    read_in: str
    model: Callable[[Any], Any] | None = None

    @property
    def loaded(self) -> type | None:
        """The class, if the program has loaded it."""
        found = getattr(sys.modules.get(self.module), self.kind, None)
        return found if isinstance(found, type) else None

    def scaler(self, instance: Any) -> LossScaler:
        """Return the protocol of an instance.

        Raises:
            AttachError: If it is not what it was when its source was read.
        """
        missing = [name for name in self.needs if not hasattr(instance, name)]
        why = f"it has no {', '.join(missing)}" if missing else ""
        if not missing:
            try:
                return self.make(instance)
            except (AttributeError, TypeError, ValueError, AttachError) as error:
                why = f"{type(error).__name__}: {str(error)[:200]}"
        version = getattr(sys.modules.get(self.name), "__version__", "of an unknown version")
        msg = (
            f"expected {self.module}.{self.kind} as in {self.name} {self.read_in}, but got one of"
            f" {self.name} {version}: {why}; say how it works with ampwatch.LossScaler(...)"
        )
        raise AttachError(msg)


# DeepSpeed. `engine.step()` is called for each micro-batch; `global_steps` counts those that ended an
# accumulation, and `skipped_steps` those of them that overflowed. A pipeline has `train_batch` instead.


def _deepspeed(engine: Any) -> LossScaler:
    counts = [engine.global_steps, engine.skipped_steps]

    def skipped(_returned: object) -> bool | None:
        before, counts[:] = tuple(counts), (engine.global_steps, engine.skipped_steps)
        return counts[1] != before[1] if counts[0] != before[0] else None

    ends = [(engine, name) for name in ("step", "train_batch") if hasattr(engine, name)]
    config = _deepspeed_scale(engine)
    if not engine.fp16_enabled() or config is None:
        return LossScaler(None, ends, skipped, name="deepspeed")
    interval = getattr(config, "scale_window", None)
    factor = float(getattr(config, "scale_factor", None) or 2.0)
    return LossScaler(
        lambda: _deepspeed_scale(engine).cur_scale,
        ends,
        skipped,
        growth_interval=interval,
        growth_factor=factor,
        backoff_factor=1.0 / factor,
        name="deepspeed",
    )


def _deepspeed_scale(engine: Any) -> Any:
    """Return what holds ``cur_scale``: of ZeRO 1 to 3 the scaler, else the optimizer or a part of it."""
    optimizer = engine.optimizer
    for name in ("loss_scaler", "loss_scale_config"):
        if hasattr(getattr(optimizer, name, None), "cur_scale"):
            return getattr(optimizer, name)
    return optimizer if hasattr(optimizer, "cur_scale") else None


# apex. At the end of `amp.scale_loss` gradients are unscaled, and `update_scale` says whether the step
# that comes next is to be skipped.


def _apex(scaler: Any) -> LossScaler:
    return LossScaler(
        scaler.loss_scale,
        (scaler, "update_scale"),
        bool,
        growth_interval=getattr(scaler, "_scale_seq_len", None),
        name="apex",
    )


# Megatron-Core. `step()` returns (ok, norm, zeros); the scale is a tensor on the device.


def _megatron(optimizer: Any) -> LossScaler:
    first = (getattr(optimizer, "chained_optimizers", None) or [optimizer])[0]
    scaler = getattr(first, "grad_scaler", None)

    def skipped(returned: Any) -> bool:
        return not returned[0]

    if scaler is None:
        return LossScaler(None, (optimizer, "step"), skipped, name="megatron")
    # The factors are tensors: read here once, at set-up, where waiting is allowed.
    return LossScaler(
        lambda: scaler.scale,
        (optimizer, "step"),
        skipped,
        growth_interval=getattr(scaler, "growth_interval", None),
        growth_factor=float(getattr(scaler, "growth_factor", 2.0)),
        backoff_factor=float(getattr(scaler, "backoff_factor", 0.5)),
        name="megatron",
    )


# fairseq and Metaseq. `update` follows a step that was taken, `check_overflow` raises before one that
# is not.


def _fairseq(scaler: Any) -> LossScaler:
    factor = float(scaler.scale_factor)
    return LossScaler(
        lambda: scaler.loss_scale,
        [(scaler, "update"), (scaler, "check_overflow", OverflowError)],
        growth_interval=max(1, int(scaler.scale_window)),
        growth_factor=factor,
        backoff_factor=1.0 / factor,
        name="fairseq",
    )


# fastai's optimizer is none of torch's, and scales nothing: its MixedPrecision has torch's GradScaler.


def _fastai(optimizer: Any) -> LossScaler:
    return LossScaler(None, (optimizer, "step"), name="none")


_FAIRSEQ = ("loss_scale", "scale_factor", "scale_window", "update", "check_overflow")

ROWS: tuple[Row, ...] = (
    Row(
        "deepspeed",
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
        ("step", "global_steps", "skipped_steps", "optimizer", "fp16_enabled", "module"),
        _deepspeed,
        "0.19.8",
        model=lambda engine: engine.module,
    ),
    Row(
        "apex",
        "apex.amp.scaler",
        "LossScaler",
        ("loss_scale", "update_scale"),
        _apex,
        "commit 007c594",
    ),
    Row(
        "megatron",
        "megatron.core.optimizer.optimizer",
        "ChainedOptimizer",
        ("step", "chained_optimizers"),
        _megatron,
        "0.16.1",
    ),
    Row(
        "megatron",
        "megatron.core.optimizer.optimizer",
        "MegatronOptimizer",
        ("step", "get_loss_scale"),
        _megatron,
        "0.16.1",
    ),
    Row(
        "fairseq",
        "fairseq.optim.dynamic_loss_scaler",
        "DynamicLossScaler",
        _FAIRSEQ,
        _fairseq,
        "commit 0d77035",
    ),
    Row(
        "metaseq",
        "metaseq.optim.dynamic_loss_scaler",
        "DynamicLossScaler",
        _FAIRSEQ,
        _fairseq,
        "(like fairseq at commit 0d77035; its own source was not read)",
    ),
    Row("fastai", "fastai.optimizer", "Optimizer", ("step",), _fastai, "2.8.12"),
)
"""The rows, the outer classes of a framework before those that they hold."""


def row_of(thing: object) -> Row | None:
    """Return the row of an object, by its class."""
    return next((row for row in ROWS if (k := row.loaded) and isinstance(thing, k)), None)


def grad_scaler_in(thing: object) -> torch.amp.GradScaler | None:
    """Return the GradScaler that an object holds in an attribute, if it is exactly one.

    timm's NativeScaler, Lightning's precision plugin, accelerate's Accelerator and fastai's
    MixedPrecision are such objects.
    """
    values = getattr(thing, "__dict__", {}).values()
    held = [value for value in values if isinstance(value, torch.amp.GradScaler)]
    return held[0] if len({id(scaler) for scaler in held}) == 1 else None


def living(models: tuple[Any, ...], *, has_optimizer: bool = False) -> Iterator[tuple[Row, Any]]:
    """Yield the instance that trains the models, and its row, if there is one in this process.

    One trains a model if it knows the model, or holds some of its parameters. What holds neither, as the
    scalers of apex and fairseq, has to be handed in. Without models any is taken, if it is the only one.

    Args:
        models: The models, if they are known.
        has_optimizer: Whether an optimizer of torch's was handed in: then only what knows its model can
            be what steps.

    Cost: without a framework of a row some lookups; with one a pass over the collector's objects.
    """
    for row in ROWS:
        kind = row.loaded
        if kind is None or (has_optimizer and row.model is None):
            continue
        found = instances_of(kind)
        if models:
            found = [one for one in found if any(_trains(row, one, model) for model in models)]
        if len(found) == 1:
            yield row, found[0]
            return


def _trains(row: Row, instance: Any, model: Any) -> bool:
    if row.model is not None:
        return model is instance or row.model(instance) in (model, getattr(model, "module", None))
    ours = {id(p) for p in model.parameters()}
    return any(id(tensor) in ours for tensor in _held_by(instance))


_HOLDERS = (
    "param_groups",
    "param_lists",
    "float16_groups",
    "fp32_from_fp32_groups",
    "model_float16_groups",
    "model_fp32_groups",
    "chained_optimizers",
)
"""Attributes in which optimizers of the rows hold the parameters of a model.

``param_groups`` may hold copies in float32 that are stepped in their stead, as in Megatron-Core, which
has the parameters in groups of their own.
"""

_MAX_NESTING = 6
"""Levels of lists, mappings and optimizers in which parameters are looked for."""


def _held_by(thing: Any, depth: int = _MAX_NESTING) -> Iterator[torch.Tensor]:
    """Yield the tensors in a list or a mapping, or in an optimizer."""
    if isinstance(thing, torch.Tensor):
        yield thing
        return
    if depth == 0 or isinstance(thing, (str, bytes)):
        return
    if isinstance(thing, dict):
        parts: Any = thing.values()
    elif isinstance(thing, Iterable):  # fastai has lists of its own
        parts = thing
    else:
        parts = [getattr(thing, name, ()) for name in _HOLDERS]
    for part in parts:
        yield from _held_by(part, depth - 1)
