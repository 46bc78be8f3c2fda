"""The kernels for tensors in host memory, each held to the same promises."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ampwatch.training.kernels import native
from ampwatch.training.kernels.eager import EagerKernel

if TYPE_CHECKING:
    from ampwatch.training.kernels.base import Kernel


@pytest.fixture(scope="session")
def native_kernel() -> native.NativeKernel:
    """Return the native kernel, compiled once for all tests."""
    if not any(map(shutil.which, native.COMPILERS)):
        pytest.skip("the native kernel needs a C compiler: cc, gcc or clang")
    kernel = native.load()
    assert kernel is not None
    return kernel


@pytest.fixture(params=["native", "eager"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Return each kernel in turn."""
    if request.param == "eager":
        return EagerKernel()
    found: native.NativeKernel = request.getfixturevalue("native_kernel")
    return found
