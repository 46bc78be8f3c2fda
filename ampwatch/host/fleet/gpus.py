"""Readings of the GPUs of this machine, and the ranks that compute on each. No NVML here, no torch, no network.

A *feature* is something that can be read from a GPU, or not. Its answer is a number, or
the reason why there is none; for what comes in several, one answer per *part* (per clock
domain, per tensor pipe). A value that is not known is therefore never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from typing_extensions import Self

    from ampwatch.host.fleet.rank import RankView


CAPABILITY_STATES = ("supported", "unsupported", "no_permission", "off", "error")
"""The few words that a dashboard colours, values of the label ``state``."""


class Reason(str, Enum):
    """The reason why there is no number; ``OK`` where there is one, or none is to be expected.

    Attributes:
        text: The reason for a reader, to follow a colon.
        state: One of ``CAPABILITY_STATES``.
    """

    text: str
    state: str

    def __new__(cls, value: str, text: str, state: str = "error") -> Self:
        """Make the reason, which is a string like its value."""
        reason = str.__new__(cls, value)
        reason._value_, reason.text, reason.state = value, text, state
        return reason

    OK = "ok", "it is read", "supported"
    WAITING = "waiting", "the first value is on its way", "supported"
    NO_DATA = "no_data", "the driver has no value right now", "supported"
    SWITCHED_OFF = "switched_off", "the settings switch it off", "off"
    NOT_SUPPORTED = (
        "not_supported",
        "this GPU, or the mode it is in, does not have it",
        "unsupported",
    )
    NOT_IN_DRIVER = "not_in_driver", "this driver is too old for it", "unsupported"
    NOT_IN_BINDING = (
        "not_in_binding",
        "this release of nvidia-ml-py is too old for it",
        "unsupported",
    )
    NO_PERMISSION = "no_permission", "this user may not ask the driver for it", "no_permission"
    NO_DEVICES = "no_devices", "the driver shows no GPU to this process", "unsupported"
    LIBRARY_NOT_FOUND = "library_not_found", "there is no NVIDIA driver here", "unsupported"
    LIBRARY_UNUSABLE = (
        "library_unusable",
        "the NVIDIA driver is here, and libnvidia-ml.so.1, by which it is asked, cannot be loaded",
    )
    DRIVER_NOT_LOADED = (
        "driver_not_loaded",
        "the library is there, but the NVIDIA driver is not loaded",
        "unsupported",
    )
    BINDING_NOT_FOUND = (
        "binding_not_found",
        "the package nvidia-ml-py, which ampwatch needs, cannot be imported",
    )
    VERSION_MISMATCH = (
        "version_mismatch",
        "the library and the loaded NVIDIA driver are of different versions",
    )
    NOT_SHOWN = "not_shown", "a training computes on it, and NVML does not show it here"
    GPU_LOST = "gpu_lost", "the GPU has fallen off the bus or cannot be reached"
    RESET_REQUIRED = "reset_required", "the GPU has to be reset before it can be used again"
    TIMEOUT = "timeout", "the driver does not answer"
    ERROR = "error", "the driver reported an error; the log says which"


NOTHING_WRONG = frozenset(
    {
        Reason.OK,
        Reason.SWITCHED_OFF,
        Reason.NO_DEVICES,
        Reason.LIBRARY_NOT_FOUND,
        Reason.DRIVER_NOT_LOADED,
    }
)
"""Reasons for which NVML as a whole may rightly have no readings."""

GONE = frozenset({Reason.GPU_LOST, Reason.RESET_REQUIRED})
"""Reasons that concern the GPU and not the feature that was asked for."""


class Feature(str, Enum):
    """A thing that can be read from a GPU."""

    UTILIZATION = "utilization"
    MEMORY = "memory"
    POWER = "power"
    POWER_LIMIT = "power_limit"
    TEMPERATURE = "temperature"
    CLOCK = "clock"
    CLOCK_MAX = "clock_max"
    THROTTLE = "throttle"
    ECC = "ecc"
    REMAPPED_ROWS = "remapped_rows"
    TENSOR_ACTIVE = "tensor_active"
    SM_ACTIVE = "sm_active"
    SM_CYCLES = "sm_cycles"
    TENSOR_CYCLES = "tensor_cycles"
    PROCESSES = "processes"
    XID = "xid"
    MIG = "mig"


TENSOR_PIPES = ("any", "hmma", "imma", "dmma", "dfma")
"""Tensor pipes. A pipe is not a dtype: ``hmma`` counts float16, bfloat16 and TF32."""

THROTTLE_REASONS = (
    "sw_power_cap",
    "sync_boost",
    "board_limit",
    "reliability",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
)
"""Reasons why clocks are held down."""

KNOWN_XIDS = (13, 31, 43, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120)
"""XIDs that people alert on, or rule out: their counters exist before the first one."""

OTHER_XIDS = "other"
MAX_FURTHER_XIDS = 16
"""Codes besides the known ones that have a counter of their own, per GPU; the others share one."""

Answer = float | Reason
Answers = dict[Feature, dict[str, Answer]]
"""Answer by feature and part; the part is empty where there is only one."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A part of a GPU in MIG mode, as CUDA sees it.

    Attributes:
        uuid: Beginning with ``MIG-``.
        compute_instance: Number within the GPU instance.
        profile: Name of the profile, as ``1g.10gb``; empty if it is not known.
    """

    uuid: str
    compute_instance: int
    profile: str


@dataclass(slots=True)
class Instance:
    """A GPU instance (MIG): what has memory and tensor cores of its own.

    Attributes:
        number: Its id, which NVML uses again after a reconfiguration.
        devices: Its compute instances.
        processes: As those of a GPU.
    """

    number: int
    devices: tuple[MigDevice, ...]
    answers: Answers = field(default_factory=dict)
    processes: dict[int, int | None] = field(default_factory=dict)

    def capabilities(self) -> Iterator[tuple[str, Reason]]:
        """Yield what is read of it, as of a GPU."""
        return _capabilities(self.answers)


@dataclass(slots=True)
class Gpu:
    """One GPU, as the newest pass found it.

    Attributes:
        index: Number that NVML gives it; others may move up when a GPU goes.
        uuid: Name for life, beginning with ``GPU-``.
        facts: What does not change: the labels of ``ampwatch_gpu_info``.
        processes: Memory of each compute process by its pid, as the daemon sees pids.
            ``None`` if the driver does not know. Unit: bytes.
        gone: Why it does not answer, ``OK`` if it does.
    """

    index: int
    uuid: str
    facts: Mapping[str, str]
    answers: Answers = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)
    processes: dict[int, int | None] = field(default_factory=dict)
    gone: Reason = Reason.OK

    @property
    def is_up(self) -> bool:
        """True if it answered in the newest pass."""
        return self.gone is Reason.OK

    def shows(self, uuid: str) -> bool:
        """Return whether ``uuid`` names this GPU or one of its MIG devices."""
        return _names(uuid, self.uuid) or self.instance_of(uuid) is not None

    def instance_of(self, uuid: str) -> Instance | None:
        """Return the GPU instance whose MIG device ``uuid`` names."""
        return next(
            (i for i in self.instances if any(_names(uuid, device.uuid) for device in i.devices)),
            None,
        )

    def number(self, feature: Feature, part: str = "") -> float | None:
        """Return a value that is known."""
        answer = self.answers.get(feature, {}).get(part)
        return None if isinstance(answer, Reason) else answer

    def capabilities(self) -> Iterator[tuple[str, Reason]]:
        """Yield features with how they stand: each as a whole, then parts that differ from it."""
        absent: dict[str, Answer] = {"": self.gone}
        return _capabilities({feature: self.answers.get(feature, absent) for feature in Feature})


@dataclass(slots=True)
class Pass:
    """The result of reading all GPUs once.

    Attributes:
        host: How NVML itself stands.
        gpus: Those that have a name.
        unnamed: Why not even the name of a GPU could be read, by its index.
        detail: What more is known of ``host``: names of files, versions; empty if nothing is.
    """

    host: Reason
    gpus: list[Gpu] = field(default_factory=list)
    unnamed: dict[int, Reason] = field(default_factory=dict)
    detail: str = ""

    @property
    def text(self) -> str:
        """How NVML itself stands, for a reader."""
        return f"{self.host.text}: {self.detail}" if self.detail else self.host.text

    def hides(self, uuid: str) -> bool:
        """Return whether it is certain that ``uuid`` names a device that NVML does not show.

        It is not where NVML says itself why it shows none, nor while a GPU does not answer: the
        device may be that one, or a part of it.
        """
        if self.host not in NOTHING_WRONG or self.host is Reason.SWITCHED_OFF or self.unnamed:
            return False
        return bool(uuid) and all(gpu.is_up and not gpu.shows(uuid) for gpu in self.gpus)


@dataclass(slots=True)
class Xids:
    """The XID errors of one GPU since the daemon began to listen.

    Attributes:
        counts: Number by label.
        seen: Unix time of the newest one by label. Unit: s.
    """

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys([*map(str, KNOWN_XIDS), OTHER_XIDS], 0)
    )
    seen: dict[str, float] = field(default_factory=dict)

    def add(self, code: int, now: float) -> None:
        """Count one error."""
        # The code comes from the driver: a label that can have any number is no label.
        label = str(code)
        is_full = len(self.counts) >= len(KNOWN_XIDS) + 1 + MAX_FURTHER_XIDS
        if label not in self.counts and is_full:
            label = OTHER_XIDS
        self.counts[label] = self.counts.get(label, 0) + 1
        self.seen[label] = now


class Gpus:
    """The GPUs that were ever seen, with their newest readings.

    A GPU that has gone stays, as one that is not there: an alert needs it.
    """

    def __init__(self) -> None:
        self.newest = Pass(Reason.WAITING)
        self._gpus: dict[str, Gpu] = {}
        self._xids: dict[str, Xids] = {}

    def all(self) -> list[Gpu]:
        """Return the GPUs by index."""
        return sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))

    def xids(self, uuid: str) -> Xids:
        """Return the XID errors of a GPU."""
        return self._xids.setdefault(uuid, Xids())

    def apply(self, found: Pass) -> bool:
        """Take over the result of a pass.

        Returns:
            Whether everything that ought to answer did.
        """
        self.newest = found
        present = {gpu.uuid: gpu for gpu in found.gpus}
        # Where NVML itself fails nobody knows how they are; what it says is the reason then.
        why = Reason.GPU_LOST if found.host in (Reason.OK, Reason.NO_DEVICES) else found.host
        self._lose(self._gpus.keys() - present.keys(), why)
        self._gpus.update(present)
        return (
            found.host in NOTHING_WRONG
            and not found.unnamed
            and all(gpu.is_up for gpu in self._gpus.values())
        )

    def silence(self, reason: Reason) -> None:
        """Forget what was read: nobody knows whether it still holds."""
        self.newest = Pass(reason)
        self._lose(list(self._gpus), reason)

    def _lose(self, uuids: Iterable[str], reason: Reason) -> None:
        for uuid in uuids:
            # A new one without readings: values of before would be shown as those of now.
            gpu = self._gpus[uuid]
            self._gpus[uuid] = Gpu(gpu.index, uuid, gpu.facts, gone=reason)


def _capabilities(answers: Answers) -> Iterator[tuple[str, Reason]]:
    for feature, parts in answers.items():
        reasons = {
            part: answer if isinstance(answer, Reason) else Reason.OK
            for part, answer in parts.items()
        }
        # One part that can be read makes the feature readable; the others are named beside it.
        whole = next(iter(reasons.values()))
        if Reason.OK in reasons.values():
            whole = Reason.OK
        yield feature.value, whole
        for part, reason in reasons.items():
            if reason is not whole:
                yield f"{feature.value}_{part}", reason


def _names(uuid: str, known: str) -> bool:
    """Return whether a name that another program gives means the device that NVML calls ``known``."""
    # CUDA tells 16 bytes and not whose they are, so the kinds before them may differ.
    return bool(uuid) and _bare(uuid) == _bare(known)


def _bare(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-")


class Use(NamedTuple):
    """A watched rank on a GPU.

    Attributes:
        instance: The GPU instance (MIG) that it computes on; ``None`` if there is none, or if
            nobody knows which.
        memory: What it uses of the GPU's memory, ``None`` if that is not known. Unit: bytes.
    """

    rank: RankView
    gpu: Gpu
    instance: Instance | None
    memory: int | None


def gpu_of(rank: RankView, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU that ``rank`` computes on, ``None`` if that is not known or not one.

    It is the one that PyTorch says the model is on, else the only one that has its process. A
    synthetic GPU is nobody's: its readings say nothing of a training.
    """
    real = [gpu for gpu in gpus if not _is_synthetic(gpu)]
    named = [gpu for gpu in real if gpu.shows(_name(rank))]
    # The name first: in a container the daemon may know a pid that is another process's.
    found = named or [gpu for gpu in real if rank.pid and rank.pid in gpu.processes]
    return found[0] if len(found) == 1 else None


def users(ranks: Iterable[RankView], gpus: Gpus) -> Iterator[Use]:
    """Yield the watched ranks that compute on a GPU.

    They are matched by their pid as the daemon sees it, or by the device that PyTorch says the
    model is on; where neither is known, a rank is on no GPU. A synthetic GPU is given to the
    ranks whose local rank is its number, so that the join can be tried.
    """
    for rank in ranks:
        name = _name(rank)
        for gpu in gpus.all():
            inside = [i for i in gpu.instances if rank.pid and rank.pid in i.processes]
            for instance in inside:
                yield Use(rank, gpu, instance, instance.processes[rank.pid])
            if inside:
                continue
            if rank.pid and rank.pid in gpu.processes:
                yield Use(rank, gpu, gpu.instance_of(name), gpu.processes[rank.pid])
            elif gpu.shows(name) or (
                not rank.ended and _is_synthetic(gpu) and gpu.index == rank.identity.local_rank
            ):
                yield Use(rank, gpu, gpu.instance_of(name), None)


def unseen(ranks: Iterable[RankView], gpus: Gpus) -> dict[str, Reason]:
    """Return the devices that ranks compute on and NVML does not show, with that as the reason."""
    known = replace(gpus.newest, gpus=gpus.all())
    names = sorted({_name(rank) for rank in ranks})
    return {name: Reason.NOT_SHOWN for name in names if known.hides(name)}


def _name(rank: RankView) -> str:
    """Return the uuid of the device that PyTorch says the model is on; empty once the rank ended."""
    return "" if rank.ended else rank.facts.get("gpu_uuid", "")


def _is_synthetic(gpu: Gpu) -> bool:
    return gpu.facts.get("synthetic") == "true"
