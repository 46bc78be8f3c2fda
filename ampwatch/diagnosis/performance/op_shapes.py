"""Findings about matmuls and convolutions whose operands have a shape or layout that costs time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.performance import op_shares as shares
from ampwatch.diagnosis.performance.kinds import DIMS_UNALIGNED, LAYOUT_NCHW
from ampwatch.numerics.units.ops import ALIGNMENT, OpKind
from ampwatch.numerics.written import counted
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.ops import LayerShape, OpCensus, OpKey, OpTally


PAD_FOR_A_GPU = (
    "Leave it as it is on this device. For GPUs pad the dimension to a multiple of 8 (of 16 for float8):"
    " a vocabulary, hidden sizes, channels, sequence lengths, the batch (DataLoader(drop_last=True))."
)
"""Advice where the device of the training has no such kernels."""


WORTH_PADDING = 32
"""A smaller dimension, the ten classes of a head, would grow by more than padding it saves."""

RANK = 4
"""Numbers in the shape of an op whose dimensions are understood."""

NCHW_SHARE = 0.5
"""Share of the FLOPs of low-precision convolutions."""


class _Dims(NamedTuple):
    """The dimensions that are not aligned."""

    sizes: dict[str, int]  # they, by what they are called
    to: int  # what they have to be multiples of

    @property
    def words(self) -> str:
        return " and ".join(f"{name} {size}" for name, size in self.sizes.items())

    @property
    def padded(self) -> str:
        return " and ".join(str(self.pad(size)) for size in self.sizes.values())

    def pad(self, size: int) -> int:
        """Return the next multiple."""
        return -(-size // self.to) * self.to

    @property
    def are_worth_it(self) -> bool:
        return max(self.sizes.values(), default=0) >= WORTH_PADDING


UNALIGNED_SHARE = 0.25
"""Share of the FLOPs in low precision with a dimension that tensor cores cannot use well, from which it is reported."""


class OpShapes:
    """Checks the dimensions and the memory format of what is multiplied in low precision."""

    def __init__(self, book: FindingBook, known: Known) -> None:
        self._book = book
        self._is_gpu = known.machine.capability is not None
        self._has_no_tensor_cores = known.machine.has_no_tensor_cores
        self._layers = known.layers
        self._autocast_dtypes = known.autocast_dtypes
        self._layers_are_open = bool(known.layers)

    def check_layers(self) -> None:
        """Check the layers alone, as soon as it is known that they multiply in low precision.

        Weights on the device ``meta`` have nothing but their shapes, which are enough.
        """
        if not self._layers_are_open:
            return
        layers = [layer for layer in self._layers if self._counts(layer)]
        if not layers:
            return
        self._layers_are_open = False
        unaligned = {layer.module: layer for layer in layers if _dims_of_layer(layer).are_worth_it}
        share = sum(_.numel for _ in unaligned.values()) / sum(_.numel for _ in layers)
        if share < UNALIGNED_SHARE:
            return
        where = shares.heaviest({name: layer.numel for name, layer in unaligned.items()})
        dims = _dims_of_layer(unaligned[where])
        evidence = {"unaligned_weight_share": share, "layers": float(len(unaligned))}
        summary = (
            f"{dims.words} of the weight of {in_words(where)}"
            f" {'is no multiple' if len(dims.sizes) == 1 else 'are no multiples'} of {dims.to}, as"
            f" {self._whose_need} for float16 and bfloat16: {dims.padded} would be. Of all weights"
            f" that are multiplied {share:.0%} are like that, in {counted(len(unaligned), 'layer')}"
        )
        self._make(where, 0, dims, evidence, summary)

    @property
    def _whose_need(self) -> str:
        """What needs dimensions to be aligned; another device's where this one has nothing of it."""
        if self._has_no_tensor_cores:
            return "the fast kernels of newer GPUs need, of which this device is none,"
        return "tensor cores need"

    def _counts(self, layer: LayerShape) -> bool:
        return (
            layer.device_type == "meta"
            or layer.dtype in shares.LOW_DTYPES
            or (layer.device_type == "cuda" and bool(self._autocast_dtypes))
        )

    def detect(self, census: OpCensus) -> None:
        """Take in one census."""
        self._check_unaligned(census)
        self._check_nchw(census)

    def _check_unaligned(self, census: OpCensus) -> None:
        amounts = shares.by_module(census, shares.TRAINING, unaligned_flops_of)
        total = shares.by_module(census, shares.TRAINING, shares.low_flops_of).total()
        share = amounts.total() / max(1, total)
        if not amounts or share < UNALIGNED_SHARE:
            return
        where = shares.heaviest(amounts)
        key, tally = max(
            (
                (k, t)
                for k, t in shares.ops_in(census, shares.TRAINING)
                if k.module == where and unaligned_flops_of(k, t)
            ),
            key=lambda item: (item[0].phase in shares.FORWARD, unaligned_flops_of(*item)),
        )
        dims = _dims_of_op(key, tally)
        evidence = {
            "unaligned_share": share,
            "unaligned_share_here": amounts[where] / total,
            "modules": float(len(amounts)),
        }
        cost = "" if self._is_gpu else "; what that costs on this device is not known"
        summary = (
            f"{share:.0%} of the {key.dtype} FLOPs are multiplications with a dimension that is not"
            f" a multiple of {dims.to}, as {self._whose_need} at step {census.step}; most of them in"
            f" {in_words(where)}: {dims.words}, where {dims.padded} would be{cost}"
        )
        self._make(where, census.step, dims, evidence, summary, key)

    def _check_nchw(self, census: OpCensus) -> None:
        # Of the forward pass: the gradient of a loss may be contiguous whatever the model is.
        amounts = shares.by_module(census, shares.FORWARD, lambda _, tally: tally.nchw_flops)
        total = shares.by_module(census, shares.FORWARD, _low_convolution_flops_of).total()
        share = amounts.total() / max(1, total)
        if not amounts or share < NCHW_SHARE:
            return
        where = shares.heaviest(amounts)
        key = max(
            (
                (t.nchw_flops, k)
                for k, t in shares.ops_in(census, shares.FORWARD)
                if k.module == where
            ),
        )[1]
        worker = "its fast kernels" if self._has_no_tensor_cores else "tensor cores"
        self._book.report(
            LAYOUT_NCHW,
            where,
            census.step,
            summary=(
                f"{share:.0%} of the {key.dtype} convolution FLOPs of the forward pass read an input that is"
                f" contiguous and not channels_last, at step {census.step}, most of them in"
                f" {in_words(where)}: {worker} work on channels_last, so each such"
                f" convolution transposes its input and its output, or runs a slower kernel"
            ),
            op=key.op,
            phase="config",
            dtype=key.dtype,
            evidence={
                "nchw_share": share,
                "nchw_share_here": amounts[where] / total,
                "modules": float(len(amounts)),
            },
            is_once=True,
        )

    def _make(
        self,
        where: str,
        step: int,
        dims: _Dims,
        evidence: dict[str, float],
        summary: str,
        key: OpKey | None = None,
    ) -> None:
        sizes = {"multiple_of": float(dims.to)}
        for name, size in dims.sizes.items():
            key_name = name.lower().replace(" ", "_")
            sizes[key_name] = float(size)
            sizes[f"{key_name}_padded"] = float(dims.pad(size))
        self._book.report(
            DIMS_UNALIGNED,
            where,
            step,
            summary=summary,
            kind_advice=PAD_FOR_A_GPU if self._has_no_tensor_cores else DIMS_UNALIGNED.advice,
            op="" if key is None else key.op,
            phase="config",
            dtype="" if key is None else key.dtype,
            evidence=evidence | sizes,
            is_once=True,
        )


def _dims_of_layer(layer: LayerShape) -> _Dims:
    to = ALIGNMENT.get(layer.dtype, ALIGNMENT["float16"])
    what = "features" if layer.kind is OpKind.MATMUL else "channels"
    inputs, outputs = layer.dims
    return _unaligned({f"input {what}": inputs, f"output {what}": outputs}, to)


def _dims_of_op(key: OpKey, tally: OpTally) -> _Dims:
    to = ALIGNMENT[key.dtype]
    if key.kind is OpKind.ATTENTION:
        return _unaligned({"head size": tally.shape[-1]}, to)
    _, m, n, k = tally.shape
    if key.kind is OpKind.CONVOLUTION:
        return _unaligned({"output channels": n, "K": k}, to)
    return _unaligned({"M": m, "N": n, "K": k}, to)


def _unaligned(sizes: dict[str, int], to: int) -> _Dims:
    return _Dims({name: size for name, size in sizes.items() if size % to}, to)


def unaligned_flops_of(key: OpKey, tally: OpTally) -> int:
    """Return the FLOPs done in low precision with a dimension that is worth padding."""
    if not tally.unaligned_flops or key.dtype not in ALIGNMENT or len(tally.shape) != RANK:
        return 0
    return tally.unaligned_flops if _dims_of_op(key, tally).are_worth_it else 0


def _low_convolution_flops_of(key: OpKey, tally: OpTally) -> int:
    return shares.low_flops_of(key, tally) if key.kind is OpKind.CONVOLUTION else 0
