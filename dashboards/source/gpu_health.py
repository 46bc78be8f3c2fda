"""The rows of the dashboard GPU about hardware that fails, and about what is not known."""

from __future__ import annotations

from dashboards.source.capabilities import GPU_REASONS, STATE_WORDS
from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    WARN,
    Step,
    described,
    thresholds,
    words,
)
from dashboards.source.gpus import ANSWERS, KEYS, NAME, NO_GPU, SHOWN, UP, by_gpu, of_gpu
from dashboards.source.panels import Panel, StateTimeline, TimeSeries
from dashboards.source.queries import Query, of, smallest
from dashboards.source.tables import Column, Key, Table

_XID, _XID_LAST = "ampwatch_gpu_xid_errors_total", "ampwatch_gpu_xid_last_timestamp_seconds"
_ECC = "ampwatch_gpu_ecc_errors_total"
_ROWS = "ampwatch_gpu_remapped_rows"
_PENDING, _FAILED = "ampwatch_gpu_row_remap_pending", "ampwatch_gpu_row_remap_failed"
_CAPABILITY = "ampwatch_gpu_capability"
_INFO = "ampwatch_gpu_info"

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
    """Return XID and ECC errors, rows of the memory, and GPUs that went."""
    bad = thresholds(GOOD, Step(1, BAD))
    warn = thresholds(GOOD, Step(1, WARN))
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
            keys=(*KEYS, Key(label="xid", title="Code", mappings=(_XIDS,), wrap=True)),
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
        StateTimeline(
            id=502,
            title="GPUs that went",
            description=described(
                shows=f"Whether each GPU answered, of at most {SHOWN}: those that are lost first.",
                good="one unbroken band for each.",
                act="a GPU that went and came back was reset, or the daemon restarted: look for an"
                " XID error at that time.",
                metrics=[UP],
            ),
            unit="none",
            no_value=NO_GPU,
            queries=(Query(smallest(SHOWN, f"min by (instance, gpu) ({of_gpu(UP)})"), NAME),),
            mappings=(ANSWERS,),
            thresholds=thresholds(BAD, Step(1, GOOD)),
        ),
        TimeSeries(
            id=503,
            title="ECC errors",
            description=described(
                shows="Errors in the memories of the GPUs that were chosen, over time.",
                good="no uncorrected one; a corrected one now and then.",
                act="uncorrected: the result of that step is wrong or the process was stopped;"
                " drain the machine. Corrected by the hundred: the memory wears out, plan it.",
                metrics=[_ECC],
            ),
            unit="short",
            no_value="Not measured: ECC is off, or these GPUs do not have it",
            queries=(
                Query(
                    f"sum by (severity) (increase({of_gpu(_ECC)}[$__rate_interval]))",
                    "{{severity}}",
                ),
            ),
            minimum=0,
            bars=True,
            interval="1m",
        ),
        Table(
            id=504,
            title="Rows of the memory",
            description=described(
                shows="Rows that were replaced by spare ones, whether one waits for the next reset"
                " of the GPU, and whether one could not be replaced; ECC errors in the time range.",
                good="0 everywhere; a replaced row is repaired, and nothing to do.",
                act="waiting: reset the GPU when the job ends. Not replaced: exchange the GPU.",
                metrics=[_ROWS, _PENDING, _FAILED, _ECC],
            ),
            unit="none",
            no_value="Not measured: it takes Ampere or newer",
            keys=KEYS,
            columns=(
                Column(
                    title="Replaced",
                    width=100,
                    expr=f"sum by (instance, gpu) ({of_gpu(_ROWS)})",
                    thresholds=warn,
                ),
                Column(title="Waiting", expr=by_gpu(of_gpu(_PENDING)), thresholds=warn, width=100),
                Column(
                    title="Not replaced", expr=by_gpu(of_gpu(_FAILED)), thresholds=bad, width=110
                ),
                Column(
                    title="ECC errors",
                    expr=f"sum by (instance, gpu) (increase({of_gpu(_ECC)}[$__range]))",
                    decimals=0,
                    thresholds=warn,
                ),
            ),
            sort_by="Not replaced",
            descending=True,
            width=12,
        ),
    )


def known() -> tuple[Panel, ...]:
    """Return the facts of the GPUs, and what cannot be read of them, in words."""
    facts = ("name", "compute_capability", "driver_version", "cuda_version", "synthetic")
    titles = ("Product", "Compute capability", "Driver", "CUDA up to", "Synthetic")
    by_fact = ", ".join(facts)
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
        Table(
            id=802,
            title="Which GPUs there are",
            description=described(
                shows="Products, drivers and how many of each; synthetic ones do not exist.",
                good="one line: the same product and driver everywhere in a job.",
                act="several drivers in a job: kernels and speed differ; bring them to one.",
                metrics=[_INFO],
            ),
            unit="none",
            no_value=NO_GPU,
            keys=tuple(
                Key(label=label, title=title) for label, title in zip(facts, titles, strict=True)
            ),
            columns=(Column(title="GPUs", expr=f"count by ({by_fact}) ({of_gpu(_INFO)})"),),
            sort_by="GPUs",
            descending=True,
            height=6,
        ),
    )
