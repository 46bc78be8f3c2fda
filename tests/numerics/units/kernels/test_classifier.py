"""A kernel's name tells where it multiplies, or says that it does not tell.

``tests/golden/kernels.tsv`` has names of real kernels, what they are, and where they were published; kept apart
from the rules, so that a rule that is changed is compared with them; and names whose words mislead. Long template arguments are cut in the
middle; the ends are as published.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ampwatch.errors import SettingsError
from ampwatch.numerics.units.kernels.classifier import (
    UNLISTED,
    KernelName,
    NameClassifier,
    Unit,
    classify,
)
from ampwatch.numerics.units.kernels.generations import lags
from ampwatch.numerics.units.kernels.kernel_patterns import DTYPES, parse_patterns
from ampwatch.numerics.units.kernels.kernel_rules import RULES
from ampwatch.numerics.units.kernels.symbols import Symbol, parse

with (Path(__file__).parents[3] / "golden" / "kernels.tsv").open(encoding="utf-8") as file:
    GOLDEN = list(csv.DictReader(file, delimiter="\t"))

PIECES = ["sm80_", "xmma_", "gemm", "_ffma_", "s16816", "void ", "<", ">", "(", ")", "::", "_Z", "9", "I", "nvjet_", "Cijk_A", "bmm_", " ", "tensorop", "L", "S_"]  # fmt: skip


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"][:60])
def test_published_names_are_reported_in_full(golden: dict[str, str]) -> None:
    """Unit, dtype, architecture, alignment and kind of every family known."""
    kernel = classify(golden["name"])

    assert golden == golden | {
        "unit": kernel.unit.value,
        "dtype": kernel.dtype,
        "arch": str(kernel.arch or ""),
        "align": str(kernel.align or ""),
        "is_gemv": "yes" if kernel.gemv else "",
    }


def test_no_rule_is_there_without_a_reason() -> None:
    """Ids are unique, for they are how a verdict is traced back; each rule says what it rests on."""
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.why.endswith(".") for rule in RULES)


@pytest.mark.parametrize("word", ["wmma", "wgmma", "tcgen05", "hgmma", "qgmma", "igmma"])
def test_the_name_of_an_mma_instruction_makes_a_tensor_core_kernel(word: str) -> None:
    """The name counts as a word of its own, and not as a part of another."""
    assert classify(f"my_{word}_fp16_v2").unit is Unit.TENSOR
    assert classify(f"my_{word}kle_fp16_v2").unit is not Unit.TENSOR


def test_amd_names_are_tensor_only_with_a_matrix_instruction_in_them() -> None:
    """NVIDIA's words do not apply there."""
    amd = [golden["name"] for golden in GOLDEN if golden["group"] == "amd"]
    tensor = [name for name in amd if classify(name).unit is Unit.TENSOR]

    assert tensor
    assert all(any(word in name for word in ("_MI", "xdl", "mfma", "wmma")) for name in tensor)
    assert classify(tensor[0].replace("_MI16x16x1", "_TT8_8")).unit is Unit.UNKNOWN


def test_return_type_namespaces_and_arguments_do_not_matter() -> None:
    """A function has one class, however it is written."""
    plain = classify("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    dressed = classify("void ns::ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn(float*, half) [clone .kd]")  # fmt: skip

    assert dressed == plain


@pytest.mark.rotating
@example("cutlass_tensorop_\u017f8_\u017f16816gemm_\u212a")  # equal to s and k but for case
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_has_an_answer(text: str) -> None:
    """A name never breaks a window, whatever a profiler writes."""
    kernel = classify(text)

    assert isinstance(kernel.unit, Unit)
    assert kernel.dtype in ("", *DTYPES)


def test_a_very_long_name_is_cut() -> None:
    """Names of thousands of characters cost no more than long ones."""
    assert classify("void f<" + "x" * 100_000 + ">()").rule == UNLISTED


def test_names_are_remembered_up_to_a_limit() -> None:
    """A window has thousands of kernels and a few hundred names."""
    classifier = NameClassifier()
    first = classifier.classify("nvjet_tst_1x1_v_bz_TNN")

    for number in range(10_000):
        classifier.classify(f"kernel_{number}")
    info = classifier.classify.cache_info()
    assert info.currsize <= 4096
    assert classifier.classify("nvjet_tst_1x1_v_bz_TNN") == first


def test_a_users_own_patterns_come_first() -> None:
    """Users know their kernels, and may correct the rules."""
    classifier = NameClassifier(parse_patterns("^my_.*=tensor:bfloat16; sgemm=other"))

    assert classifier.classify("my_mixer_sm90_v2") == KernelName(
        Unit.TENSOR, "user", "user-1", "bfloat16", arch=90
    )
    assert classifier.classify("ampere_sgemm_32x32_tn").unit is Unit.OTHER
    assert classifier.classify("nvjet_tst_64x8_v_bz_TNN") == classify("nvjet_tst_64x8_v_bz_TNN")


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


def test_patterns_come_as_one_string_or_several() -> None:
    """One string comes from an environment variable, several from Python."""
    text = " a.*=tensor:float16 ;\n(?=b)x{1,2}=cuda;"

    parsed = parse_patterns(text)
    assert [(p.pattern.pattern, p.unit, p.dtype) for p in parsed] == [
        ("a.*", Unit.TENSOR, "float16"),
        ("(?=b)x{1,2}", Unit.CUDA, ""),
    ]
    assert parse_patterns(["a.*=tensor:float16", "(?=b)x{1,2}=cuda"]) == parsed
    assert parse_patterns("") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "expected regex=unit"),
        ("=tensor", "expected regex=unit"),
        ("a=gpu", "expected a unit of tensor, cuda, unknown, other"),
        ("a=tensor:fp16", "got 'fp16'"),
        ("a(=tensor", "expected a regular expression, got 'a('"),
    ],
)
def test_what_is_not_of_that_form_is_refused_by_name(text: str, said: str) -> None:
    """Expected, given, and the setting it is about."""
    with pytest.raises(SettingsError) as caught:
        parse_patterns(text)

    assert said in str(caught.value)
    assert "`kernel_patterns`" in str(caught.value)


SM75 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"
SM80 = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8"
SM89_FP8 = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_warpsize2x2x1_tensor16x8x32_algo2"
SM90 = "nvjet_sm90_tst_384x80_64x3_4x1_v_bz_coopA_TNT"
CUDNN_SM80 = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128"
FLASH_2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<64, cutlass::half_t> >(x)"
EFFICIENT = "fmha_cutlassF_f16_aligned_64x64_rf_sm80"


@pytest.mark.parametrize(
    ("name", "capability", "lagging"),
    [
        (SM75, (7, 5), False),
        (SM75, (8, 0), True),
        (SM75, (9, 0), True),
        (SM75, (12, 0), True),
        (SM80, (8, 0), False),
        (SM80, (8, 6), False),
        (SM80, (8, 9), False),
        (SM80, (9, 0), True),
        (SM80, (10, 0), True),
        (SM80, (12, 0), False),
        (SM89_FP8, (8, 9), False),
        (SM89_FP8, (10, 0), True),
        (SM90, (9, 0), False),
        (CUDNN_SM80, (10, 0), True),
        (FLASH_2, (9, 0), False),
        (EFFICIENT, (9, 0), False),
        (EFFICIENT.replace("80", "75"), (9, 0), True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", (10, 0), False),
        ("ampere_sgemm_32x32_tn", (9, 0), False),
        ("Cijk_Alik_Bljk_B_BS_BH_MT16x16x128_MI16x16x1_SN_ISA942", (9, 4), False),
    ],
)
def test_lag(name: str, capability: tuple[int, int], *, lagging: bool) -> None:
    """Not for what says no architecture, has nothing newer, or is not on tensor cores."""
    assert lags(classify(name), capability) is lagging
