"""The meaning of every label, and its values where they are few: a new label is a row here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet import gpus
from ampwatch.host.fleet.phase_times import DEVICE, HOST
from ampwatch.host.fleet.ranges import CANDIDATES
from ampwatch.host.metrics.kernels import PROFILER_PARTS
from ampwatch.host.metrics.scopes import DTYPES, NO_DTYPE, OTHER_DTYPE, ROOT_MODULE
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.numerics.whatif import Fit
from ampwatch.report.op_shares import Absence
from ampwatch.report.verdict import Level
from ampwatch.wire import records

if TYPE_CHECKING:
    from collections.abc import Iterable


def _values(names: Iterable[Any]) -> str:
    """Return the values of a label, given as words or as the members of an enumeration that has them."""
    words = (getattr(name, "label", getattr(name, "value", name)) for name in names)
    return ", ".join(f"`{word}`" for word in words)


LABELS: dict[str, str] = {
    "run": "Name of the run; [with `~2` or `~uid1001`](operate.md#fleets) where another run has that name.",
    "rank": "Global rank in the process group, `0` without one.",
    "collector": "`rings` reads the records of trainings, `gpu` the GPUs, `otlp` pushes metrics.",
    "state": f"Of a run: {_values(records.RunState)}. Of a reading of a GPU or a measurement of precision: {_values(gpus.CAPABILITY_STATES)}.",
    "health": f"{_values(Level)}, the worst first: a critical finding is current; was at the end; the process raised or was killed; it ends no steps; a warning is current, or a critical finding over.",
    "place": "Place of a finding: `module encoder.0`, `parameter fc.weight`; `other` where a rank has had too many.",
    "op": "Base name of the ATen op at fault; empty where no op is.",
    "first_step": "First iteration in which a finding was seen.",
    "remedy": "What to do first: the remedy that cured the failed batch, else the first sentence of what to change.",
    "cause": "`true` for the rank whose failure made the other ranks end, else `false`.",
    "error": "Class of the exception that ended a rank, or `killed`.",
    "optimizer": "`0` to `7` in the order in which they were first seen, then `other`.",
    "sensor": "Name of the sensor, or `unknown`.",
    "class": f"{_values(records.SKIP_CLASSES)}: searching the scale, just after a growth, neither, several in a row.",
    "kind": "Of findings: [slug of the kind](diagnoses/README.md). Of elements: `nan` or `inf`.",
    "topic": _values(records.Topic) + ".",
    "format": "Name of the dtype in PyTorch: "
    + " or ".join(_values(CANDIDATES).rsplit(", ", 1))
    + "; of block-scaled formats "
    + " or ".join(
        _values(fmt.name for fmt in FORMATS.values() if fmt.block is not None).rsplit(", ", 1)
    )
    + ".",
    "fit": f"{_values(Fit)}: as they are, with some power of two as scale, with none.",
    "phase": f"Of a step: {_values(records.StepPhase)}: [what belongs to each](page.md#where-the-time-of-a-step-goes).",
    "clock": f"{_values((HOST, DEVICE))}: time of the training thread, which is ahead of a device, or of the device's stream.",
    "module": f"Qualified name of a module, `{ROOT_MODULE}` for the model itself.",
    "op_kind": _values(kind for kind in OpKind if kind is not OpKind.CAST) + ".",
    "dtype": f"{_values(DTYPES)}; `{OTHER_DTYPE}` for every other one, `{NO_DTYPE}` where the name of a kernel does not say. `tf32` is float32 that may use TF32.",
    "from_dtype": "As `dtype`.",
    "to_dtype": "As `dtype`.",
    "unit": f"{_values(records.KERNEL_UNITS[:-1])}: tensor cores, general-purpose cores, either of the two, no matrix product.",
    "part": f"Of a profiler window: {_values(PROFILER_PARTS)} (reading its events). Of memory: {_values(records.MEMORY_PARTS)}: the ring file, evidence for reports, values on their way to the host, copies of weights and of averages to compare with, inputs for replays.",
    "memory": _values(records.MEMORY_PLACES) + ", all devices together.",
    "views": "`hardware_kernels`, `hardware_arithmetic` or `kernels_arithmetic`.",
    "severity": f"Of findings: {_values(records.Severity)}. Of ECC errors: `corrected` or `uncorrected`.",
    "gpu": "Number that NVML gives the GPU, which may change; empty for NVML itself, and for a device that NVML does not show.",
    "uuid": "UUID of the GPU as in NVML, `nvidia-smi -L` and DCGM; `SYNTHETIC-...` if it does not exist.",
    "feature": "Of a GPU: "
    + _values(("nvml", *gpus.Feature))
    + ", or a part that differs (`tensor_active_dmma`); `uuid` of a GPU without a name. Of precision: `ops`, `kernels`, `arithmetic`: [three views](lab.md#precision).",
    "reason": "Of throttling: "
    + _values((*gpus.THROTTLE_REASONS, "thermal"))
    + ". Of a reading of a GPU ([meaning](gpu.md#absent-never-zero)): "
    + _values(gpus.Reason)
    + ". Of a measurement of precision: "
    + _values(Absence)
    + ", or how ops were counted: "
    + _values(records.CensusSource)
    + ". Of float32 under autocast ([meaning](lab.md#why-an-op-ran-in-float32)): "
    + _values(why for why in Fallback if why is not Fallback.NONE)
    + ". Of profiler windows that were not opened: "
    + _values(records.WindowSkip)
    + ".",
    "pipe": _values(gpus.TENSOR_PIPES) + ": of all tensor pipes together, then of each.",
    "domain": "`sm` or `memory`.",
    "xid": f"Code of the error; `{gpus.OTHER_XIDS}` beyond {gpus.MAX_FURTHER_XIDS} unexpected ones.",
    "name": "Name of the product.",
    "pci_bus_id": "Address on the PCI bus.",
    "compute_capability": "CUDA compute capability, as `9.0`.",
    "driver_version": "Version of the NVIDIA driver.",
    "cuda_version": "Highest version of CUDA that the driver supports.",
    "synthetic": "`true` for a GPU of `ampwatch daemon --demo-gpu`, else `false`.",
    "gpu_instance": "Number of the GPU instance (MIG); empty on a whole GPU.",
    "compute_instance": "Number of the compute instance.",
    "mig_uuid": "UUID of the MIG device.",
    "profile": "Profile of the MIG device, as `1g.10gb`.",
    "root": "`true`, or `false` when another finding explains this one.",
    "url": "The setting `external_url`.",
    "version": "Version of ampwatch.",
    "user": "Login name, or uid, of the owner of the ring.",
    "world_size": "Number of ranks in the process group.",
    "local_rank": "Rank on this host.",
    "device": "Name of the device that is trained on.",
    "autocast_dtype": "Dtypes of the autocast regions that were seen.",
    "scaler": "Class of the gradient scaler, `none` or `disabled`.",
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
