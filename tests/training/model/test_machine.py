"""Machines, by files and properties that are made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ampwatch.errors import SettingsError
from ampwatch.numerics.units.ops import HALF_DTYPES, OpKind
from ampwatch.report.op_shares import peaks_of
from ampwatch.settings import Settings
from ampwatch.training.model import machine
from ampwatch.training.model.facts import run_facts
from ampwatch.training.model.machine import allows_tf32, gpu_facts, machine_of

cpu_dtypes = machine.cpu_dtypes  # the real one, whatever a fixture puts in its place

CUDA = torch.device("cuda", 0)

X86 = """\
processor : 0
model name : Some CPU
flags     : fpu sse2 avx2 avx512f {}

processor : 1
flags     : fpu
"""

ARM = "processor : 0\nFeatures : fp asimd {}\n"


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        (X86.format(""), set()),
        (X86.format("avx512_bf16"), {"bfloat16"}),
        (X86.format("amx_bf16 amx_tile"), {"bfloat16"}),
        (X86.format("avx512_fp16 avx512_bf16"), {"float16", "bfloat16"}),
        (X86.format("f16c"), set()),
        (ARM.format("fphp asimdhp"), {"float16"}),
        (ARM.format("asimdhp bf16"), {"float16", "bfloat16"}),
        ("no such line", HALF_DTYPES),
    ],
)
def test_a_cpu_has_the_dtypes_that_its_flags_name(
    text: str, dtypes: set[str], tmp_path: Path
) -> None:
    """Conversion alone (f16c) is no arithmetic; a system that does not tell gets no advice."""
    path = tmp_path / "cpuinfo"
    path.write_text(text)

    assert cpu_dtypes(path) == dtypes
    assert cpu_dtypes(tmp_path / "absent") == HALF_DTYPES


@dataclass
class Properties:
    """An H100, as PyTorch describes it."""

    name: str = "NVIDIA H100 80GB HBM3"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    uuid: str = "11111111-2222-3333-4444-555555555555"
    clock_rate: int = 1_830_000
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120


class OldProperties:
    """Device properties of a version of PyTorch that does not know clocks."""

    name = "NVIDIA H100 80GB HBM3"
    major, minor, multi_processor_count = 9, 0, 132


@dataclass
class MigProperties(Properties):
    """An instance of an H100, whose uuid PyTorch prints like that of a GPU."""

    name: str = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    multi_processor_count: int = 60


class LazyProperties(OldProperties):
    """Device properties of which one is asked of the driver when it is read, and refused."""

    @property
    def clock_rate(self) -> int:
        message = "CUDA error: invalid device ordinal"
        raise RuntimeError(message)


class Driver:
    """The CUDA driver of the H100: two functions that return 0 and write through pointers."""

    ATTRIBUTES: ClassVar = {13: 1_830_000, 36: 2_619_000, 37: 5120}

    def __init__(self, error: int = 0) -> None:
        self.error = error

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802 - CUDA's name
        device._obj.value = 100 + ordinal
        return self.error

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert device.value == 100
        value._obj.value = self.ATTRIBUTES[attribute]
        return 0


def no_library(name: str) -> Any:
    raise OSError(name)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    def properties(_device: torch.device) -> Any:
        if isinstance(request.param, Exception):
            raise request.param
        return request.param

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return CUDA


@pytest.mark.parametrize("device", [Properties()], indirect=True)
def test_a_gpu_is_described_by_what_its_peak_is_made_of(device: torch.device) -> None:
    """The peak and the bandwidth are those of the datasheet: 989 TFLOP/s, 3.35 TB/s."""
    facts = gpu_facts(device)
    found = machine_of(device, Settings())

    assert facts["gpu_uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert facts["gpu_capability"] == "9.0"
    assert (found.device_type, found.device_name) == ("cuda", Properties.name)
    assert found.capability == (9, 0)
    assert found.peak_flops["float16"] == pytest.approx(989e12, rel=0.01)
    assert found.memory_bandwidth == pytest.approx(3.35e12, rel=0.01)


@pytest.mark.parametrize("device", [OldProperties()], indirect=True)
def test_what_pytorch_does_not_have_is_left_out(device: torch.device) -> None:
    """No clock, no peak; nothing is guessed."""
    found = machine_of(device, Settings())

    assert set(gpu_facts(device, no_library)) == {"device", "gpu_capability", "gpu_sms"}
    assert found.capability == (9, 0)
    assert found.peak_flops == {}
    assert found.memory_bandwidth == 0.0


@pytest.mark.parametrize("device", [OldProperties(), LazyProperties()], indirect=True)
def test_clocks_that_pytorch_does_not_have_are_the_drivers(device: torch.device) -> None:
    """CUDA 13 has taken them out of its properties; a driver that refuses makes up none."""
    facts = gpu_facts(device, lambda _name: Driver())
    refused = gpu_facts(device, lambda _name: Driver(error=3))

    assert facts["gpu_clock_hertz"] == repr(1.83e9)
    assert float(facts["gpu_memory_bandwidth"]) == pytest.approx(3.35e12, rel=0.01)
    assert set(refused) == {"device", "gpu_capability", "gpu_sms"}


@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        (Properties(uuid="1-2"), "GPU-1-2"),
        (Properties(uuid="GPU-1-2"), "GPU-1-2"),
        (MigProperties(uuid="1-2"), "MIG-1-2"),
        (MigProperties(uuid="MIG-1-2"), "MIG-1-2"),
    ],
    indirect=["device"],
)
def test_a_device_is_named_as_the_driver_names_it(device: torch.device, uuid: str) -> None:
    """With the prefix of its kind, whether PyTorch prints one or not."""
    assert gpu_facts(device)["gpu_uuid"] == uuid


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (
            RuntimeError("The NVIDIA driver on your system is too old (found 11040).\nUpdate it."),
            "The NVIDIA driver on your system is too old (found 11040).",
        ),
        (AssertionError("Torch not compiled with CUDA enabled"), "Torch not compiled with CUDA"),
        (torch.cuda.DeferredCudaCallError(""), "DeferredCudaCallError"),
    ],
    indirect=["device"],
)
def test_a_device_that_pytorch_cannot_describe_stops_nothing(
    device: torch.device, words: str
) -> None:
    """The training goes on, and whoever asks for the peak is told why there is none."""
    facts = run_facts(None, [], device)
    found = machine_of(device, Settings.resolve({"peak_flops": "float16=1e15"}, {}))

    assert facts["device"] == "cuda"
    assert facts["gpu_unknown"].startswith(words)
    assert (found.capability, found.peak_flops) == (None, {"float16": 1e15})
    assert words in peaks_of(facts).reason


@pytest.mark.parametrize("device", [Properties(name="AMD Instinct MI300X")], indirect=True)
def test_of_an_amd_gpu_only_the_name_is_a_fact(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compute capability looks like one of NVIDIA's, and means something else."""
    monkeypatch.setattr(torch.version, "hip", "6.4")

    assert gpu_facts(device) == {"device": "AMD Instinct MI300X"}
    assert machine_of(device, Settings()).capability is None
    assert "this is AMD Instinct MI300X" in peaks_of(gpu_facts(device)).reason


def test_a_cpu_and_no_device_have_no_facts_of_a_gpu() -> None:
    """Without a GPU there is no compute capability."""
    for device in (torch.device("cpu"), None):
        assert gpu_facts(device) == {}
        assert machine_of(device, Settings()).capability is None


@pytest.mark.parametrize(
    "setting",
    [{"peak_flops": "float16"}, {"peak_flops": "half=1"}, {"kernel_patterns": "gemm=fast"}],
)
def test_a_setting_that_is_not_of_its_form_is_refused_at_once(setting: dict[str, str]) -> None:
    """Before anything is attached, with its name."""
    with pytest.raises(SettingsError, match=next(iter(setting))):
        Settings.resolve(setting, {})


class _Plain:
    """Switches of which only the older one was used."""

    def __init__(self, *, allow_tf32: bool) -> None:
        self.allow_tf32 = allow_tf32


@pytest.mark.parametrize("allowed", [True, False])
def test_the_older_switch_is_read(*, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of matmuls and that of cuDNN are two."""
    monkeypatch.setattr(torch.backends.cuda, "matmul", _Plain(allow_tf32=allowed))
    monkeypatch.setattr(torch.backends, "cudnn", _Plain(allow_tf32=not allowed))

    assert allows_tf32(OpKind.MATMUL) is allowed
    assert allows_tf32(OpKind.CONVOLUTION) is not allowed


def test_pytorch_has_the_switches_that_are_asked() -> None:
    """TF32 is off for matmuls and on for convolutions, by PyTorch's own defaults."""
    assert allows_tf32(OpKind.MATMUL) is False
    assert allows_tf32(OpKind.CONVOLUTION) is True


class _Mixed:
    """Switches of which both kinds were used: PyTorch raises at the older one."""

    def __init__(self, precision: str) -> None:
        self.fp32_precision = precision

    @property
    def allow_tf32(self) -> bool:
        msg = "mix of the legacy and new APIs"
        raise RuntimeError(msg)


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("ieee", False)])
def test_the_newer_switch_is_read_where_the_older_one_raises(
    *, precision: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question in the middle of a step must not fail."""
    monkeypatch.setattr(torch.backends.cuda, "matmul", _Mixed(precision))

    assert allows_tf32(OpKind.MATMUL) is allowed
