"""The name of a kernel's function is found in the text that a profiler writes."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.kernels.symbols import Symbol, parse


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("ampere_sgemm_32x32_tn", Symbol("ampere_sgemm_32x32_tn", "")),
        ("void foo(int, bar<float>)", Symbol("foo", "")),
        ("void a::b::foo<4, c<int> >(d::e<float>)", Symbol("a::b::foo", "4, c<int> ")),
        ("void (anonymous namespace)::foo<int>(int)", Symbol("foo", "int")),
        ("void at::native::(anonymous namespace)::foo<int>(int)", Symbol("at::native::foo", "int")),
        (
            "std::enable_if<!(false), void>::type in::gemvx::kernel<int, half>(x)",
            Symbol("in::gemvx::kernel int", "int, half"),
        ),
        (
            "void cutlass::Kernel2<a_gemm_align8>(a_gemm_align8::Params)",
            Symbol("cutlass::Kernel2 a_gemm_align8", "a_gemm_align8"),
        ),
        (
            "void cutlass::device_kernel<flash::on_sm90<flash::Fwd<int> > >(x)",
            Symbol(
                "cutlass::device_kernel flash::on_sm90 flash::Fwd int",
                "flash::on_sm90<flash::Fwd<int> > ",
            ),
        ),
        ("void foo<f(int)::{lambda(float)#1}>(int)", Symbol("foo", "f(int)::{lambda(float)#1}")),
        ("void foo<auto (int) -> bool, 2>(int)", Symbol("foo", "auto (int) -> bool, 2")),
        ("void cut::Kernel2<short_na", Symbol("cut::Kernel2 short_na", "short_na")),
        ("_ZN3foo3barIN3baz4quuxILi128EEEEvT_", Symbol("foo::bar", "baz quux")),
        ("", Symbol("", "")),
    ],
)
def test_the_function_is_distinguished_from_its_return_type_and_arguments(
    name: str, symbol: Symbol
) -> None:
    """Template arguments are kept apart; what a wrapper wraps is named with it."""
    assert parse(name) == symbol
