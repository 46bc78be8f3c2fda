"""The rows of the dashboard GPU about hardware that fails, and about what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.capabilities import GPU_REASONS, STATE_WORDS
from dashboards.source.fields import (
    BAD,
    NEUTRAL,
    WARN,
    described,
    words,
)
from dashboards.source.gpus import KEYS, of_gpu
from dashboards.source.queries import of
from dashboards.source.tables import Column, Key, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_XID, _XID_LAST = "ampwatch_gpu_xid_errors_total", "ampwatch_gpu_xid_last_timestamp_seconds"
_CAPABILITY = "ampwatch_gpu_capability"
_XIDS = words(
    {
        "13": ("13: the program, an illegal instruction or access", NEUTRAL),
        "31": ("31: the program, an address that is not mapped", NEUTRAL),
        "43": ("43: the program, stopped after an error", NEUTRAL),
        "48": ("48: uncorrectable memory error", BAD),
        "62": ("62: the GPU's own controller halted", BAD),
        "63": ("63: a row of the memory will be replaced", NEUTRAL),
        "64": ("64: a row of the memory could not be replaced", BAD),
        "74": ("74: NVLink error", BAD),
        "79": ("79: the GPU has fallen off the bus", BAD),
        "92": ("92: many correctable memory errors", WARN),
        "94": ("94: memory error, contained", WARN),
        "95": ("95: memory error, not contained", BAD),
        "119": ("119: the GPU's system processor does not answer", BAD),
        "120": ("120: error in the GPU's system processor", BAD),
    }
)


def errors() -> tuple[Panel, ...]:
    """Return the XID errors."""
    by_xid = "max by (instance, gpu, xid)"
    return (
        Table(
            id=501,
            title="XID errors",
            description=described(
                shows="The newest XID error of each GPU and code, and how many there were in the"
                " time range. The first one of a code that is not expected comes with its counter,"
                " so that it is seen by its time only.",
                good="none. 13, 31 and 43 are errors of a program, not of the GPU.",
                act="48, 62, 64, 74, 79, 95, 119, 120: drain the machine. A collapse of the loss"
                " scale at the same time is no accident: the numbers of that GPU are not to be"
                " trusted, go back to a checkpoint from before.",
                metrics=[_XID_LAST, _XID],
            ),
            unit="none",
            no_value="No XID error since the daemons began to listen",
            keys=(*KEYS, Key(label="xid", title="Code", mappings=(_XIDS,))),
            columns=(
                Column(
                    title="Newest",
                    width=170,
                    expr=f"1000 * {by_xid} ({of_gpu(_XID_LAST)})",
                    unit="dateTimeAsIso",
                ),
                Column(
                    title="In the time range",
                    width=130,
                    expr=f"{by_xid} (increase({of_gpu(_XID)}[$__range]))"
                    f" and on (instance, gpu, xid) {of_gpu(_XID_LAST)}",
                    decimals=0,
                ),
            ),
            sort_by="Newest",
            descending=True,
            width=12,
        ),
    )


def known() -> tuple[Panel, ...]:
    """Return the facts of the GPUs, and what cannot be read of them, in words."""
    return (
        Table(
            id=801,
            title="What is read of how many GPUs, and why not",
            description=described(
                shows="Each thing that could be read of a GPU, and of how many that were chosen it"
                " is. The feature nvml without a GPU is NVML itself on a machine.",
                good="supported. GPM (tensor_active and its kin) takes Hopper or newer.",
                act="the reason says what to change; docs/gpu.md has the details.",
                metrics=[_CAPABILITY],
            ),
            unit="none",
            no_value="No daemon was chosen, or it reads no GPUs (--no-gpu)",
            keys=(
                KEYS[0],
                Key(label="feature", title="What"),
                Key(label="state", title="State", mappings=(STATE_WORDS,), width=130),
                Key(label="reason", title="Why", mappings=(GPU_REASONS,)),
            ),
            columns=(
                Column(
                    title="GPUs",
                    expr=f"count by (instance, feature, state, reason) ({of(_CAPABILITY)})",
                    width=80,
                ),
            ),
            sort_by="State",
            descending=True,
            height=10,
        ),
    )
