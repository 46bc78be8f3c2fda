"""The meaning of every label, and its values where they are few: a new label is a row here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.fleet.gpus import (
    CAPABILITY_STATES,
    MAX_FURTHER_XIDS,
    OTHER_XIDS,
    TENSOR_PIPES,
    THROTTLE_REASONS,
    Feature,
    Reason,
)
from ampwatch.host.fleet.phase_times import DEVICE, HOST
from ampwatch.host.fleet.ranges import CANDIDATES
from ampwatch.host.metrics.kernels import PROFILER_PARTS
from ampwatch.host.metrics.scopes import DTYPES, NO_DTYPE, OTHER_DTYPE, ROOT_MODULE
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.numerics.whatif import Fit
from ampwatch.report.op_shares import Absence
from ampwatch.report.verdict import Level
from ampwatch.wire.records import (
    KERNEL_UNITS,
    MEMORY_PARTS,
    MEMORY_PLACES,
    SKIP_CLASSES,
    CensusSource,
    RunState,
    Severity,
    StepPhase,
    Topic,
    WindowSkip,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


def _values(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


LABELS: dict[str, str] = {
    "run": "Name of the run; `~2`, `~3` ... is appended to a job while one that started earlier runs under the same name, and `~uid1001` to those of another user than the one whose run of that name was seen first.",
    "rank": "Global rank in the process group, `0` without one.",
    "collector": "Which of the daemon's collectors: `rings` reads the records of the training processes, `gpu` the GPUs, `otlp` pushes the metrics, where it is configured to.",
    "state": "Of a run: "
    + _values(state.value for state in RunState)
    + ". Of a reading of a GPU or a measurement of precision: "
    + _values(CAPABILITY_STATES)
    + ".",
    "health": _values(level.label for level in Level)
    + ", the worst first: a critical finding goes on; one did so at the end; the process raised or was killed; it ends no step any more; a warning goes on, or a critical finding is over.",
    "place": "Where a finding was made, in words: `module encoder.0`, `parameter fc.weight`, `the loss, outside the model`; `other` where a rank has had too many.",
    "op": "Base name of the ATen op at fault; empty where no op is.",
    "first_step": "First iteration in which a finding was seen.",
    "remedy": "What to do first: the remedy that was tried on the batch that failed and cures it, else the first sentence of what to change.",
    "cause": "`true` for the rank whose failure made the other ranks end, else `false`.",
    "error": "Class of the exception that ended a rank, or `killed`.",
    "optimizer": "`0` to `7` in the order in which they were first seen, `other` for all beyond.",
    "sensor": "Name of the sensor in the training process, as in its log and report; `unknown` for errors whose sensor the daemon does not know.",
    "class": _values(skip.label for skip in SKIP_CLASSES)
    + ": searching the scale, just after a growth, neither, several in a row.",
    "kind": "Of findings: slug of the kind of failure, never changed between releases: "
    + _values(KINDS)
    + ". Of elements: `nan` or `inf`.",
    "topic": _values(topic.label for topic in Topic) + ".",
    "format": "Name of the dtype in PyTorch: "
    + " or ".join(_values(CANDIDATES).rsplit(", ", 1))
    + "; of block-scaled formats "
    + " or ".join(
        _values(fmt.name for fmt in FORMATS.values() if fmt.block is not None).rsplit(", ", 1)
    )
    + ".",
    "fit": _values(fit.value for fit in Fit)
    + ": as they are, with some power of two as scale, with none.",
    "phase": "Of a step: "
    + _values(phase.label for phase in StepPhase)
    + ": docs/page.md says what belongs to each.",
    "clock": _values((HOST, DEVICE))
    + ": the time of the training thread, which is ahead of a device, or that between marks on the stream of the device.",
    "module": f"Qualified name of a module, `{ROOT_MODULE}` for the model itself; of at most as many modules as the setting `module_series` says, chosen once.",
    "op_kind": _values(kind.label for kind in OpKind if kind is not OpKind.CAST) + ".",
    "dtype": f"{_values(DTYPES)}; `{OTHER_DTYPE}` for every other one, `{NO_DTYPE}` where the name of a kernel does not say. `tf32` is float32 that may use TF32.",
    "from_dtype": "As `dtype`.",
    "to_dtype": "As `dtype`.",
    "unit": _values(KERNEL_UNITS[:-1])
    + ": tensor cores, the general-purpose cores, not known which of the two, and kernels that multiply no matrices.",
    "part": "Of a profiler window: "
    + _values(PROFILER_PARTS)
    + ": loading the profiler, starting it, iterations that took longer, stopping it, reading its events. Of memory: "
    + _values(MEMORY_PARTS)
    + ": the ring file, the evidence for reports, values on their way to the host, elements of weights that updates are compared with, those of averages, and inputs of the model that replays still need.",
    "memory": _values(MEMORY_PLACES) + ": pinned or not, or of all devices together.",
    "views": "`hardware_kernels`, `hardware_arithmetic` or `kernels_arithmetic`.",
    "severity": "Of findings: "
    + _values(severity.value for severity in Severity)
    + ". Of ECC errors: `corrected` or `uncorrected`.",
    "gpu": "Number that NVML gives the GPU; it changes when another GPU goes. Empty for NVML itself, and for a device that NVML does not show.",
    "uuid": "UUID of the GPU as NVML, `nvidia-smi -L` and DCGM say it, beginning with `GPU-`; with `SYNTHETIC-` if it does not exist. Of a device that NVML does not show as PyTorch says it, which may begin with `MIG-`.",
    "feature": "What could be read of a GPU: "
    + _values(("nvml", *(feature.value for feature in Feature)))
    + ", or one part of it (`tensor_active_dmma`) where that differs from the rest; `uuid` of a GPU without a name. Of a measurement of precision: `ops`, what they computed in, `kernels`, the share of tensor cores in their time, and `arithmetic`, the share of the ceiling that was used.",
    "reason": "Of throttling: "
    + _values((*THROTTLE_REASONS, "thermal"))
    + ", the last one only where the driver does not separate the kinds. Of a reading of a GPU: "
    + _values(reason.value for reason in Reason)
    + ". Of a measurement of precision: "
    + _values(absence.value for absence in Absence)
    + ", and of ops that were counted, how: "
    + _values(source.label for source in CensusSource)
    + ". Of float32 under autocast: "
    + _values(reason.label for reason in Fallback if reason is not Fallback.NONE)
    + ". Of profiler windows that were not opened: "
    + _values(reason.label for reason in WindowSkip)
    + ".",
    "pipe": _values(TENSOR_PIPES) + ": of all tensor pipes together, then of each.",
    "domain": "`sm` or `memory`.",
    "xid": f"Code of the error as NVIDIA's table of XIDs has it, `{OTHER_XIDS}` for those beyond {MAX_FURTHER_XIDS} that were not expected.",
    "name": "Name of the product.",
    "pci_bus_id": "Address on the PCI bus.",
    "compute_capability": "CUDA compute capability, as `9.0`.",
    "driver_version": "Version of the NVIDIA driver.",
    "cuda_version": "Highest version of CUDA that the driver supports.",
    "synthetic": "`true` for a GPU of `ampwatch daemon --demo-gpu`, which does not exist; else `false`.",
    "gpu_instance": "Number of the GPU instance (MIG), used again after a reconfiguration; of a rank empty on a whole GPU, and where the instance is unknown.",
    "compute_instance": "Number of the compute instance within its GPU instance.",
    "mig_uuid": "UUID of the MIG device, beginning with `MIG-`.",
    "profile": "Profile of the MIG device, as `1g.10gb`.",
    "root": "`true`, or `false` when another finding explains this one.",
    "url": "Address of the page of a daemon, as its operator gave it.",
    "version": "Version of ampwatch: of the daemon, or of the training process.",
    "user": "Login name, on the daemon's machine, of the user who owns the ring of the rank; the uid where it knows none.",
    "world_size": "Number of ranks in the process group.",
    "local_rank": "Rank on this host.",
    "device": "Name of the device that is trained on.",
    "autocast_dtype": "Dtypes of the autocast regions that were seen.",
    "scaler": "Class of the gradient scaler; `none` without one, `disabled` if it is.",
    "init_scale": "Loss scale the scaler was made with.",
    "growth_factor": "Factor of a growth.",
    "backoff_factor": "Factor of a backoff.",
    "growth_interval": "Unskipped steps before a growth.",
    "torch": "Version of PyTorch.",
    "python": "Version of Python in the training process.",
    "allow_tf32": "Whether float32 matmuls may use TF32.",
    "cudnn_allow_tf32": "Whether cuDNN convolutions may use TF32.",
    "float32_matmul_precision": "`torch.get_float32_matmul_precision()`.",
    "allow_fp16_reduced_precision_reduction": "Whether float16 matmuls may accumulate in float16.",
    "allow_bf16_reduced_precision_reduction": "Whether bfloat16 matmuls may accumulate in bfloat16.",
    "cudnn_benchmark": "Whether cuDNN searches for its fastest algorithms.",
}
"""Every label: what it says, and its values where they are few."""
