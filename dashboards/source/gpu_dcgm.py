"""The row of the dashboard GPU about dcgm-exporter, where that runs: its names, old and new."""

from __future__ import annotations

from dashboards.source.fields import NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.gpus import ANY_PIPE, SHOWN, of_gpu
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query, foreign, largest
from dashboards.source.tables import Column, Key, Table

_TENSOR = ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO")
_HMMA = ("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "DCGM_FI_PROF_HMMA_UTIL_RATIO")
_DRAM = ("DCGM_FI_PROF_DRAM_ACTIVE",)
_UTILIZATION = ("DCGM_FI_DEV_GPU_UTIL",)
_POWER = ("DCGM_FI_DEV_POWER_USAGE",)
_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_MEMORY = ("DCGM_FI_DEV_FB_USED",)
_CLOCK = ("DCGM_FI_DEV_SM_CLOCK",)
_TEMPERATURE = ("DCGM_FI_DEV_GPU_TEMP",)
_XID = ("DCGM_FI_DEV_XID_ERRORS",)
_OURS = "ampwatch_gpu_tensor_active_ratio"

_BLANK = 1e14
"""DCGM has numbers beyond this one where it has no value."""

_NAME = "{{host}} GPU {{gpu}}"
_NONE = "No dcgm-exporter among the jobs and instances that were chosen: choose All"


def _read(names: tuple[str, ...], factor: str = "") -> str:
    """Return PromQL of a value of DCGM by any of its names, with a label ``uuid`` and ``host``.

    The host is in ``Hostname`` of older and in ``hostname`` of newer exporters.
    """
    known = " or ".join(f"{_chosen(name)} < {_BLANK:g}" for name in names)
    scaled = f"({known}){factor}"
    for source, label in (("UUID", "uuid"), ("Hostname", "host"), ("hostname", "host")):
        scaled = f'label_replace({scaled}, "{label}", "$1", "{source}", "(.+)")'
    return scaled


def _chosen(name: str) -> str:
    return foreign(name, 'gpu=~"$gpu"')


def _by_gpu(expr: str) -> str:
    return f"max by (host, gpu) ({expr})"


def dcgm() -> tuple[Panel, ...]:
    """Return what dcgm-exporter says of the same GPUs, in the units used here."""
    how = (
        "dcgm-exporter is a scrape job of its own: its job and instances have to be chosen as well"
    )
    return (
        TimeSeries(
            id=901,
            width=8,
            title="Tensor pipes active (DCGM)",
            description=described(
                shows="Share of cycles in which a tensor pipe was active, by DCGM, under its old"
                f" name or its new one; the {SHOWN} busiest GPUs. {how}.",
                good="the same as above, to three decimals.",
                act="0 for a long time while the GPU is busy: DCGM is stuck after an XID 31;"
                " restart it.",
                metrics=_TENSOR,
            ),
            unit="percentunit",
            no_value=_NONE,
            queries=(Query(largest(SHOWN, _by_gpu(_read(_TENSOR))), _NAME),),
            minimum=0,
            maximum=1,
        ),
        TimeSeries(
            id=902,
            width=8,
            title="DCGM against ampwatch",
            description=described(
                shows="Distance of the tensor activity by DCGM from that by ampwatch, of the same GPU"
                " (UUID), of those where it is largest. DCGM's is up to 30 s old.",
                good="near 0.",
                act="a lasting difference: one of the two is stuck, or reads another GPU instance.",
                metrics=(*_TENSOR, _OURS),
            ),
            unit="percentunit",
            no_value="Not known: it takes dcgm-exporter and ampwatch on the same GPU",
            queries=(
                Query(
                    largest(
                        SHOWN,
                        f"abs(max by (uuid) ({_read(_TENSOR)}) - on (uuid)"
                        f" max by (uuid) ({of_gpu(_OURS, ANY_PIPE)}))",
                    ),
                    "{{uuid}}",
                ),
            ),
            minimum=0,
        ),
        TimeSeries(
            id=904,
            title="Energy (DCGM)",
            description=described(
                shows="Mean power from DCGM's energy counter, sum of the GPUs that were chosen.",
                good="as the energy by machine above.",
                act="nothing by itself.",
                metrics=[_ENERGY],
            ),
            unit="watt",
            no_value=_NONE,
            queries=(Query(f"sum(rate({_chosen(_ENERGY)}[$__rate_interval])) / 1000", "all GPUs"),),
            minimum=0,
            width=8,
        ),
        Table(
            id=903,
            title="Every GPU (DCGM)",
            description=described(
                shows=f"What DCGM says of each GPU, in the units used here. {how}.",
                good="as in the tables above.",
                act="the XID is the last one, for ever: DCGM does not say when it was.",
                metrics=(
                    *_UTILIZATION,
                    *_HMMA,
                    *_DRAM,
                    *_MEMORY,
                    *_POWER,
                    *_CLOCK,
                    *_TEMPERATURE,
                    *_XID,
                ),
            ),
            unit="none",
            no_value=_NONE,
            keys=(Key(label="host", title="Machine"), Key(label="gpu", title="GPU", width=70)),
            columns=(
                Column(
                    title="Any kernel",
                    expr=_by_gpu(_read(_UTILIZATION, " / 100")),
                    unit="percentunit",
                ),
                Column(title="Half-precision pipe", expr=_by_gpu(_read(_HMMA)), unit="percentunit"),
                Column(title="Memory bandwidth", expr=_by_gpu(_read(_DRAM)), unit="percentunit"),
                Column(
                    title="Memory used", expr=_by_gpu(_read(_MEMORY, " * 1048576")), unit="bytes"
                ),
                Column(title="Power", expr=_by_gpu(_read(_POWER)), unit="watt"),
                Column(title="SM clock", expr=_by_gpu(_read(_CLOCK, " * 1e6")), unit="hertz"),
                Column(title="Temperature", expr=_by_gpu(_read(_TEMPERATURE)), unit="celsius"),
                Column(
                    title="Last XID",
                    expr=_by_gpu(_read(_XID)),
                    thresholds=thresholds(NEUTRAL, Step(1, WARN)),
                ),
            ),
            sort_by="Machine",
        ),
    )
