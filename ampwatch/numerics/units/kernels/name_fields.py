"""Dtypes, architectures, alignment and split-K as kernel names spell them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import BLOCK_SCALED, BLOCKS, FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.numerics.units.kernels.symbols import Symbol

MMA_SHAPE = (
    r"(?<![0-9])(?:884|1684|1688|8816|8832|16816|161616|16832|16864|32816|83216)"
    r"(?P<infix>(?:bf16|f16|tf32|fast|f32|s8|u8|s4|u4|b1|f64)*)"
    r"(?=gemm|cudnn|fprop|dgrad|wgrad|syrk|herk|symm|hemm|trmm|rank)"
)
"""The shape of a matrix multiply-accumulate instruction, m16n8k16 for 16816. Digits count only
in front of the operation and not inside a number: a tile of 1688 elements is none."""

_WORDS = {word: fmt.kernel_label for fmt in FORMATS.values() for word in fmt.kernel_words}
_WORDS |= dict.fromkeys(("int8", "s8", "u8", "i8"), "int8")
_WORD = re.compile(
    r"(?<![a-z0-9])(" + "|".join(sorted(_WORDS, key=len, reverse=True)) + r")(?![a-z0-9])",
    re.IGNORECASE | re.ASCII,
)
_TYPES = {cpp_type: fmt.kernel_label for fmt in FORMATS.values() for cpp_type in fmt.cpp_types}
_TYPES |= dict.fromkeys(("float2", "complex<float>"), "complex64")
_TYPES |= dict.fromkeys(("double2", "complex<double>"), "complex128")
_TYPE = re.compile(
    r"(?<![a-z0-9])_{0,2}(" + "|".join(sorted(_TYPES, key=len, reverse=True)) + r")(?![a-z0-9_])",
    re.IGNORECASE | re.ASCII,
)


def words_dtype(symbol: Symbol) -> str:
    """Return the first dtype named in the function, else the first among the template arguments."""
    match = _WORD.search(symbol.function)
    return _WORDS[match[1].lower()] if match else types_dtype(symbol)


def types_dtype(symbol: Symbol) -> str:
    """Return the first C++ type of numbers among the template arguments."""
    match = _TYPE.search(symbol.template)
    return _TYPES[match[1].lower()] if match else ""


_LETTERS = {"s": "float32", "d": "float64", "h": "float16", "c": "complex64", "z": "complex128"}
_MMA = re.compile(r"(?P<letter>[a-z]?)" + MMA_SHAPE, re.IGNORECASE | re.ASCII)
_MMA_3X = re.compile(
    r"[shdi]?\d+x\d+x\d+(?P<infix>tf32|bf16|f16)?(?=gemm)", re.IGNORECASE | re.ASCII
)
_INFIX = re.compile(r"(tf32|bf16|f16|s8|u8|f64)", re.IGNORECASE | re.ASCII)
_BLAS = re.compile(r"(?:^|_|::)g?([sdhcz])(?:gemm|cudnn)", re.IGNORECASE | re.ASCII)


def mma_dtype(symbol: Symbol) -> str:
    """Return the dtype of a kernel named after its MMA instruction, as cuBLAS and CUTLASS do.

    ``cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_...``: the letter before the shape is the
    accumulator, what follows the operation are the operands, what precedes it is the output.
    """
    text = symbol.function
    match = _MMA.search(text) or _MMA_3X.search(text)
    if match is None:
        return blas_dtype(symbol)
    letter = (match.groupdict().get("letter") or "").lower()
    infix = _INFIX.search(match["infix"] or "")
    word = infix or _WORD.search(text, match.end()) or _WORD.search(text)
    dtype = _WORDS.get(word[1].lower(), "") if word else ""
    if letter in ("d", "c", "z"):
        return _LETTERS[letter]
    if dtype not in ("", "float32"):
        return dtype
    if letter in ("h", "i"):
        return {"h": "float16", "i": "int8"}[letter]
    # Accumulated in float32, no word on the operands: float32 taken as TF32 from Ampere on,
    # with the shape m16n8k8; float16 on Volta, with m8n8k4.
    return (
        "tf32"
        if re.search("1688|x8(?:tf32)?$", match[0])
        else "float16"
        if "884" in match[0]
        else ""
    )


def blas_dtype(symbol: Symbol) -> str:
    """Return the dtype by the letter of BLAS: ``sgemm`` is float32 unless a dtype is named."""
    match = _WORD.search(symbol.function)
    if match:
        return _WORDS[match[1].lower()]
    letter = _BLAS.search(symbol.function)
    return _LETTERS[letter[1].lower()] if letter else types_dtype(symbol)


_SEGMENT = re.compile(
    r"_(tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|u8)(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|i32|u8)(?=_|$)"
)


def segments_dtype(symbol: Symbol) -> str:
    """Return the dtype of an xmma kernel: ``f32f32_tf32f32_f32`` multiplies float32 as TF32."""
    segments = _SEGMENT.findall(symbol.function.lower())
    if "tf32" in segments:
        return "tf32"
    return _WORDS[segments[0]] if segments else ""


_NVJET = re.compile(r"nvjet_(?:sm\d+_)?(?P<letters>[a-z]+)_")
# The elements that share a scale, and its format, without a sign: vec32UE8M0, vec16UE4M3.
_BLOCK_SIZES = "|".join(str(block.elements) for block in BLOCKS)
_NVJET_BLOCK = re.compile(rf"vec(?:{_BLOCK_SIZES})U(?=E)")
_NVJET_LETTERS = {"h": "float16", "t": "bfloat16", "q": "float8", "s": "float32", "d": "float64"}


def nvjet_dtype(symbol: Symbol) -> str:
    """Return the dtype of an nvjet kernel by the first of its letters, that of the first matrix."""
    text = symbol.function
    match = _NVJET.search(text)
    if "_tf32" in text:
        return "tf32"
    if _NVJET_BLOCK.search(text):
        return BLOCK_SCALED
    return _NVJET_LETTERS.get(match["letters"][0], "") if match else ""


_BATCHED = re.compile(
    r"(?:bmm|gemm)_[a-z0-9]+_((?:mx)?(?:bfloat16|fp16|e\dm\d))", re.IGNORECASE | re.ASCII
)


def batched_dtype(symbol: Symbol) -> str:
    """Return the dtype of TensorRT-LLM's ``bmm_<output>_<matrices>_<accumulator>_t...``."""
    match = _BATCHED.search(symbol.function)
    return _WORDS.get(match[1].lower(), "") if match else ""


_FMHA_SM = re.compile(r"qkv(bfloat16|fp16|e4m3|e5m2|e2m1|q)", re.IGNORECASE | re.ASCII)


def fmha_dtype(symbol: Symbol) -> str:
    """Return the dtype of TensorRT-LLM's ``fmhaSm100aKernel_QkvE4m3OBfloat16...``."""
    match = _FMHA_SM.search(symbol.function)
    return _WORDS.get(match[1].lower(), "") if match else words_dtype(symbol)


def mixed_sdpa_dtype(symbol: Symbol) -> str:
    """Return the dtype of cuDNN's attention; ``f16`` in it stands for bfloat16 as well."""
    dtype = words_dtype(symbol)
    return "" if dtype == "float16" else dtype


_TENSILE = re.compile(r"Cijk_A\w+?_B\w+?_(4xi8|F8|B8|[HBSDCZXI])")
_TENSILE_LETTERS = {
    "H": "float16",
    "B": "bfloat16",
    "S": "float32",
    "X": "tf32",
    "D": "float64",
    "C": "complex64",
    "Z": "complex128",
    "F8": "float8",
    "B8": "float8",
    "I": "int8",
    "4xi8": "int8",
}


def tensile_dtype(symbol: Symbol) -> str:
    """Return the dtype of a Tensile kernel: the first letters after the index assignments."""
    match = _TENSILE.search(symbol.function)
    return _TENSILE_LETTERS[match[1]] if match else ""


_ARCH = re.compile(r"(?<![a-z])sm_?(\d{2,3})(?!\d)|(?:Sm|SM)(\d{2,3})(?!\d)|cutlass_(\d{2,3})_")
_GENERATION = re.compile(
    r"(?:^|_)(kepler|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_"
)
_GENERATIONS: Mapping[str, int] = {
    "kepler": 35,
    "maxwell": 50,
    "pascal": 60,
    "volta": 70,
    "turing": 75,
    "ampere": 80,
    "ada": 89,
    "hopper": 90,
    "blackwell": 100,
}
_SHAPE_ARCH = {"884": 70, "16816": 80, "16832": 80, "16864": 80}
_SHAPE = re.compile(r"[a-ce-z](" + "|".join(_SHAPE_ARCH) + r")(?=gemm|cudnn|fprop|dgrad|wgrad)")


def read_arch(symbol: Symbol) -> int | None:
    """Return the architecture the kernel was written for, 80 for sm80."""
    for text in (symbol.function, symbol.template):
        match = _ARCH.search(text)
        if match:
            return int(match[1] or match[2] or match[3])
    word = _GENERATION.search(symbol.function)
    if word:
        return _GENERATIONS[word[1]]
    shape = _SHAPE.search(symbol.function)  # the architecture that brought the instruction
    return _SHAPE_ARCH[shape[1]] if shape else None


_ALIGN = re.compile(r"_align(\d+)(?!\d)|_aligna(\d+)(?!\d)|_ldg(\d+)_", re.IGNORECASE | re.ASCII)


def read_align(symbol: Symbol) -> int | None:
    """Return the alignment of the matrices, in elements."""
    match = _ALIGN.search(symbol.function)
    return int(match[1] or match[2] or match[3]) if match else None
