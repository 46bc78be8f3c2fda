"""Raw events of a recording as Kineto has them, made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch._C._autograd import DeviceType


@dataclass
class Event:
    """One event, with the methods that are called of a real one."""

    _name: str
    _start: int = 0
    _duration: int = 1
    device: str = "CPU"
    correlation: int = 0
    link: int = 0
    inputs: tuple[str, ...] = ()
    thread: int = 1
    index: int = 0
    annotation: bool = False
    sizes: Any = field(default_factory=list)
    concrete: Any = field(default_factory=list)
    operations: int = 0

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._duration

    def device_type(self) -> Any:
        return DeviceType.__members__[self.device]

    def device_index(self) -> int:
        return self.index

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.link

    def start_thread_id(self) -> int:
        return self.thread

    def dtypes(self) -> list[str]:
        return list(self.inputs)

    def shapes(self) -> Any:
        return self.sizes

    def concrete_inputs(self) -> Any:
        return self.concrete

    def flops(self) -> int:
        return self.operations

    def is_user_annotation(self) -> bool:
        return self.annotation


@dataclass
class EventOfAKind(Event):
    """One event of a PyTorch that says what sort of event it is, as those after 2.6 do."""

    kind: str = ""

    def activity_type(self) -> str:
        return self.kind


def kernel(name: str, start: int, duration: int, link: int = 0, **more: Any) -> Event:
    return Event(name, start, duration, device="CUDA", link=link, **more)


def op(name: str, correlation: int, *inputs: str, **more: Any) -> Event:
    return Event(name, correlation=correlation, inputs=inputs, **more)


def call(name: str, correlation: int, link: int = 0, **more: Any) -> Event:
    """A call of CUDA's runtime; without a link it was made outside of all ops."""
    return Event(name, correlation=correlation, link=link, **more)


def launch(count: int = 1, name: str = "cudaLaunchKernel") -> list[Event]:
    return [Event(name, correlation=1000 + i) for i in range(count)]


TENSOR_KERNEL = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNN"
FP32_KERNEL = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__51_cublas"


def steps_of_a_gpu() -> list[Event]:
    """Two matmuls and a copy, in half and in single precision."""
    return [
        op("aten::mm", 1, "c10::Half", "c10::Half"),
        op("aten::addmm", 2, "float", "float", "float"),
        *launch(2),
        kernel(TENSOR_KERNEL, 100, 50, link=1),
        kernel(FP32_KERNEL, 120, 60, link=2),
        kernel("Memcpy HtoD (Pinned -> Device)", 400, 20, link=2),
    ]
