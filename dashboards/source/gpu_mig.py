"""The row of the dashboard GPU about GPUs that are divided (MIG)."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.gpus import ANY_PIPE, KEYS, TENSOR_FULL, of_gpu
from dashboards.source.panels import Panel, Stat
from dashboards.source.queries import Query
from dashboards.source.tables import Column, Key, Table

_ENABLED = "ampwatch_gpu_mig_enabled"
_INFO = "ampwatch_mig_info"
_USED, _CAPACITY = "ampwatch_mig_memory_used_bytes", "ampwatch_mig_memory_capacity_bytes"
_TENSOR, _SM = "ampwatch_mig_tensor_active_ratio", "ampwatch_mig_sm_active_ratio"
_OCCUPANCY, _DRAM = "ampwatch_mig_sm_occupancy_ratio", "ampwatch_mig_dram_active_ratio"


def _instance(expr: str) -> str:
    return f"max by (instance, gpu, gpu_instance) ({expr})"


def instances() -> tuple[Panel, ...]:
    """Return the instances of GPUs in MIG mode, each with what it does."""
    none = "No GPU in MIG mode was chosen"
    return (
        Stat(
            id=701,
            title="GPUs in MIG mode",
            course=False,
            description=described(
                shows="GPUs that are divided into instances.",
                good="as you have set them up. Training on a whole GPU wants none.",
                act="nvidia-smi -mig 0 undoes it, with the machine drained.",
                metrics=[_ENABLED],
            ),
            unit="none",
            no_value="None of the GPUs that were chosen has a MIG mode",
            queries=(Query(f"sum({of_gpu(_ENABLED)})"),),
            height=6,
        ),
        Table(
            id=703,
            title="Profiles",
            description=described(
                shows="The division: how many instances of each profile the GPUs have.",
                good="as you have set them up.",
                act="a profile with less memory than the job needs fails at its first large"
                " batch, not at the start.",
                metrics=[_INFO],
            ),
            unit="none",
            no_value=none,
            keys=(*KEYS, Key(label="profile", title="Profile")),
            columns=(
                Column(
                    title="Instances",
                    expr=f"count by (instance, gpu, profile) ({of_gpu(_INFO)})",
                ),
            ),
            sort_by="Machine",
            height=6,
            width=20,
        ),
        Table(
            id=702,
            title="Instances",
            description=described(
                shows="Each instance of a GPU: its profile, its memory, and the share of cycles in"
                " which its tensor pipes, SMs and memory were busy.",
                good="about 75 % of the tensor pipes is a full load, as for a whole GPU.",
                act="an instance that idles is capacity that others could have; numbers of"
                " instances are used again after a change of the division.",
                metrics=[_INFO, _TENSOR, _SM, _OCCUPANCY, _DRAM, _USED, _CAPACITY],
            ),
            unit="none",
            no_value=none,
            keys=(
                *KEYS,
                Key(label="gpu_instance", title="Instance", width=90),
            ),
            columns=(
                Column(
                    title="Compute instances",
                    expr=f"count by (instance, gpu, gpu_instance) ({of_gpu(_INFO)})",
                ),
                Column(
                    title="Tensor pipes",
                    expr=_instance(of_gpu(_TENSOR, ANY_PIPE)),
                    unit="percentunit",
                    thresholds=TENSOR_FULL,
                ),
                Column(title="SMs", expr=_instance(of_gpu(_SM)), unit="percentunit"),
                Column(title="Warps", expr=_instance(of_gpu(_OCCUPANCY)), unit="percentunit"),
                Column(title="Bandwidth", expr=_instance(of_gpu(_DRAM)), unit="percentunit"),
                Column(title="Memory used", expr=_instance(of_gpu(_USED)), unit="bytes"),
                Column(title="Memory", expr=_instance(of_gpu(_CAPACITY)), unit="bytes"),
            ),
            sort_by="Machine",
        ),
    )
