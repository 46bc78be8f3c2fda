"""The kernels for tensors in host memory, each held to the same promises."""

from __future__ import annotations

import pytest

import tools.native
from ampwatch.training.kernels import native
from ampwatch.training.kernels.base import Kernel
from ampwatch.training.kernels.eager import EagerKernel


@pytest.fixture(scope="session")
def native_kernel() -> native.NativeKernel:
    """Return the native kernel, or skip where it cannot be built."""
    kernel = native.load()
    if kernel is None:
        # Anything else that keeps it from being built is a fault.
        with pytest.raises(tools.native.BuildError, match=r"a C compiler|Python\.h"):
            tools.native.build(tools.native.ROOT)
        pytest.skip("there is no C compiler on this machine, or no header of Python")
    return kernel


@pytest.fixture(params=["native", "eager"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Return each kernel in turn."""
    if request.param == "eager":
        return EagerKernel()
    found: native.NativeKernel = request.getfixturevalue("native_kernel")
    return found
