"""Shares of dtypes and units on one rank, and how much of its ceiling was used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import SettingsError
from ampwatch.numerics.formats import kernel_label
from ampwatch.numerics.units.ops import FP8_DTYPES, HALF_DTYPES, TENSOR_DTYPES
from ampwatch.numerics.units.peaks import Peaks, ideal_seconds, parse_override, peak_flops
from ampwatch.wire.records import CensusRecord, WindowRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

LOW_PRECISION = HALF_DTYPES | FP8_DTYPES
"""Dtypes that mixed precision is for; TF32 is float32 to the user, and counted beside it."""

MATMUL_UNITS = ("tensor", "cuda", "unknown")
"""Units of the kernels that multiply matrices, of which some might be on tensor cores."""

CPU = "cpu"


class Absence(str, Enum):
    """Reasons for which a view of precision has nothing to say; ``OK`` if it has."""

    OK = "ok"
    WAITING = "waiting"
    NO_GPU = "no_gpu"
    NO_MATMULS = "no_matmuls"
    UNKNOWN_DEVICE = "unknown_device"
    NO_PEAK = "no_peak"
    NO_STEP_TIME = "no_step_time"

    @property
    def state(self) -> str:
        """The reason as one of the words that a dashboard colours."""
        waits = self in (Absence.OK, Absence.WAITING, Absence.NO_STEP_TIME)
        return "supported" if waits else "unsupported"


class Share(NamedTuple):
    """A share of which only bounds are known, between 0 and 1.

    Attributes:
        low: What is known to belong to it.
        high: What may belong to it.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Share of the ceiling that an iteration has used.

    Attributes:
        ideal_seconds: What it would take at the peak of each dtype. Unit: s.
        step_seconds: What it usually takes. Unit: s.
        utilization: The first over the second: dtype-correct, and it adds up.
        mfu: FLOP/s over the peak of float16 or bfloat16, as papers report it.
        absence: Why there is no ``utilization``; ``OK`` if there is.
        sentence: The same in words; empty if there is.
    """

    ideal_seconds: float | None = None
    step_seconds: float = 0.0
    utilization: float | None = None
    mfu: float | None = None
    absence: Absence = Absence.OK
    sentence: str = ""


class Precision:
    """The precision of one rank.

    Attributes:
        census: The newest op census, whose totals are since the run began; ``None`` before.
        window: The newest profiler window, likewise.
        peaks: What the device could do, by dtype, or why that is not known.
        ideal_tensor_seconds: Time that the FLOPs of an iteration in the dtypes of tensor cores take at
            the peak; ``None`` if that is not known. Unit: s.
    """

    def __init__(self) -> None:
        self.census: CensusRecord | None = None
        self.window: WindowRecord | None = None
        self.peaks = Peaks(reason=NO_DEVICE)
        self._knows_device = False
        self._arithmetic: tuple[float, Arithmetic] | None = None
        self.ideal_tensor_seconds: float | None = None

    def put(self, record: CensusRecord | WindowRecord) -> None:
        """Take in a record; the newest holds."""
        if isinstance(record, CensusRecord):
            self.census = record
            self._update_ideal()
        else:
            self.window = record

    def know_facts(self, facts: Mapping[str, str]) -> None:
        """Take in what the training process says of its device, and of the setting ``peak_flops``."""
        self._knows_device = "gpu_capability" in facts or facts.get("device", "") not in NO_GPU
        self.peaks = peaks_of(facts)
        self._update_ideal()

    def _update_ideal(self) -> None:
        """Take in a new census or new peaks: what is made of them is asked for many times."""
        self._arithmetic = None
        self.ideal_tensor_seconds = None
        if self.census is not None and self.census.iterations and self.peaks.flops:
            flops = flops_per_iteration(self.census)
            of_tensor_cores = {d: n for d, n in flops.items() if d in TENSOR_DTYPES}
            ideal = ideal_seconds(by_peak(of_tensor_cores), self.peaks.flops)
            self.ideal_tensor_seconds = ideal.seconds

    @property
    def kernels_absence(self) -> Absence:
        """The reason for which no share of tensor cores is known; ``OK`` if one is."""
        if self.window is None or not self.window.iterations:
            return Absence.WAITING
        if tensor_share(self.window) is not None:
            return Absence.OK
        return Absence.NO_GPU if on_cpu_only(self.window) else Absence.NO_MATMULS

    def arithmetic(self, step_seconds: float) -> Arithmetic:
        """Return how much of its ceiling the training uses.

        Args:
            step_seconds: Usual time of an iteration, 0 if not known. Unit: s.
        """
        # Kept: it is asked for with each scrape and each look at the rings.
        if self._arithmetic is None or self._arithmetic[0] != step_seconds:
            self._arithmetic = step_seconds, self._arithmetic_of(step_seconds)
        return self._arithmetic[1]

    def _arithmetic_of(self, step_seconds: float) -> Arithmetic:
        if self.census is None or not self.census.iterations:
            return Arithmetic(absence=Absence.WAITING, sentence="No iteration was counted yet.")
        flops = flops_per_iteration(self.census)
        if not self.peaks.flops:
            absence = Absence.UNKNOWN_DEVICE if self._knows_device else Absence.NO_GPU
            return Arithmetic(absence=absence, sentence=self.peaks.reason)
        ideal = ideal_seconds(by_peak(flops), self.peaks.flops)
        if ideal.seconds is None:
            return Arithmetic(absence=Absence.NO_PEAK, sentence=ideal.reason)
        if not step_seconds > 0.0:
            sentence = "The time of a step is not known yet."
            return Arithmetic(ideal.seconds, absence=Absence.NO_STEP_TIME, sentence=sentence)
        half = max((self.peaks.flops.get(dtype, 0.0) for dtype in HALF_DTYPES), default=0.0)
        mfu = sum(flops.values()) / step_seconds / half if half else None
        return Arithmetic(ideal.seconds, step_seconds, ideal.seconds / step_seconds, mfu)


NO_DEVICE = (
    "The peak of this device is not known: the training process has not named an NVIDIA GPU;"
    " set peak_flops to what its datasheet says."
)


NOT_NVIDIA = (
    "The peak is derived for NVIDIA's GPUs only, and this is {}; set peak_flops to what its"
    " datasheet says."
)
NO_CLOCK = (
    "The peak is not known: neither PyTorch nor the driver reports the clock of the GPU; set"
    " peak_flops to what its datasheet says."
)
NOT_DESCRIBED = (
    "The peak is not known: PyTorch cannot describe the device ({}); set peak_flops to what its"
    " datasheet says."
)

NO_GPU = ("", "cpu", "meta", "unknown")
"""Names of devices that are no GPU."""

MAX_SMS = 10_000
FASTEST_HERTZ = 1e11
"""Frequency that no GPU reaches. Unit: Hz."""


def peaks_of(facts: Mapping[str, str]) -> Peaks:
    """Return the peaks of the device that ``facts`` describe; what ``peak_flops`` says wins."""
    try:
        override = parse_override(facts.get("peak_flops", ""))
    except SettingsError:  # of another release: the training process has checked its own
        override = {}
    derived = _derived_peaks(facts)
    flops = {**derived.flops, **override}
    return Peaks(flops, "" if flops else derived.reason)


def _derived_peaks(facts: Mapping[str, str]) -> Peaks:
    device = facts.get("device", "")
    if "gpu_unknown" in facts:
        return Peaks(reason=NOT_DESCRIBED.format(facts["gpu_unknown"]))
    if "gpu_capability" not in facts:
        return Peaks(reason=NO_DEVICE if device in NO_GPU else NOT_NVIDIA.format(device))
    if "gpu_clock_hertz" not in facts:
        return Peaks(reason=NO_CLOCK)
    try:
        major, _, minor = facts["gpu_capability"].partition(".")
        capability = int(major), int(minor)
        sms = int(facts["gpu_sms"])
        clock = float(facts["gpu_clock_hertz"])
    except (KeyError, ValueError):
        return Peaks(reason=NO_DEVICE)
    # Another process has written them.
    if not (0 < sms <= MAX_SMS and 0.0 < clock <= FASTEST_HERTZ):
        return Peaks(reason=NO_DEVICE)
    return peak_flops(capability, sms, clock, facts.get("device", ""))


def flops_by_dtype(census: CensusRecord) -> dict[str, int]:
    """Return the FLOPs so far of each dtype that has some, the most first."""
    flops: Counter[str] = Counter()
    for total in census.ops:
        if total.flops:
            flops[total.dtype] += total.flops
    return dict(flops.most_common())


def flops_per_iteration(census: CensusRecord) -> dict[str, float]:
    """Return the FLOPs of a counted iteration, by dtype: the mean."""
    return {dtype: n / census.iterations for dtype, n in flops_by_dtype(census).items()}


def low_precision_share(flops: Mapping[str, float]) -> float | None:
    """Return the share of FLOPs in 16 bits and fewer; ``None`` if there are no FLOPs."""
    whole = sum(flops.values())
    return sum(flops[d] for d in LOW_PRECISION & flops.keys()) / whole if whole else None


def casts_per_op(census: CensusRecord) -> float | None:
    """Return how many casts there are to an op that multiplies; ``None`` if there is none."""
    ops = sum(total.calls for total in census.ops if total.kind.has_flops)
    return sum(cast.calls for cast in census.casts) / ops if ops else None


def tensor_share(window: WindowRecord) -> Share | None:
    """Return the share of tensor cores in the time of the matmul-like kernels so far.

    At least those that certainly run on tensor cores, at most those of which nobody knows as
    well. ``None`` if no kernel multiplied matrices.
    """
    time = nanoseconds_by_unit(window)
    tensor, cuda, unknown = (time[unit] for unit in MATMUL_UNITS)
    whole = tensor + cuda + unknown
    return Share(tensor / whole, (tensor + unknown) / whole) if whole else None


def on_cpu_only(window: WindowRecord) -> bool:
    """Return whether all that windows have seen so far was on a CPU."""
    return {total.unit for total in window.totals} == {CPU}


def nanoseconds_by_unit(window: WindowRecord) -> Counter[str]:
    """Return the time of the kernels so far, by unit; 0 for a unit without. Unit: ns."""
    time: Counter[str] = Counter()
    for total in window.totals:
        time[total.unit] += total.nanoseconds
    return time


def by_peak(flops: Mapping[str, float]) -> dict[str, float]:
    """Return ``flops`` by the dtypes that peaks are known by: one for all formats of FP8."""
    found: Counter[str] = Counter()
    for dtype, number in flops.items():
        found[kernel_label(dtype)] += number  # type: ignore[assignment]
    return dict(found)
