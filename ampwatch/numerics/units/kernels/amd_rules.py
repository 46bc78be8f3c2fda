"""What the names of AMD's libraries say. Only a matrix instruction in them is evidence."""

from __future__ import annotations

import re

from ampwatch.numerics.units.kernels import name_fields as fields
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.numerics.units.kernels.kernel_rule import Rule, like

AMD = (
    Rule(
        "tensile-matrix-instruction",
        "tensile",
        Unit.TENSOR,
        "Tensile (rocBLAS, hipBLASLt) writes the matrix instruction as MI16x16x1; kernels "
        "for the vector units have none. Matrix cores multiply float32 and float64 too.",
        re.compile(r"Cijk_A\w+_MI\d+x\d+x\d+"),
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "tensile",
        "tensile",
        Unit.UNKNOWN,
        "Without the instruction: short names of hand-written kernels leave it out as well.",
        re.compile(r"Cijk_A\w"),
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "composable-kernel",
        "composable-kernel",
        Unit.TENSOR,
        "Composable Kernel and MIOpen name AMD's matrix instructions: XDL, MFMA, WMMA.",
        like(r"^(?:ck|ck_tile)::.*(?:xdl|mfma|wmma)|^igemm_\w*gtcx"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "composable-kernel-template",
        "composable-kernel",
        Unit.TENSOR,
        "The same among the template arguments.",
        like(r"^(?:ck|ck_tile)::(?!.*(?:elementwise|reduce|norm|softmax))"),
        like(r"xdl|mfma|wmma"),
        dtype=fields.types_dtype,
    ),
    Rule(
        "amd",
        "amd",
        Unit.UNKNOWN,
        "The rest of AMD's matmul libraries says nothing on the unit.",
        like(
            r"^(?:ck|ck_tile)::.*(?:gemm|conv(?!er)|fmha|mha)|^miopen\w*conv|^igemm_"
            r"|^rocblas_\w*gemm|^aiter::.*(?:gemm|fmha)|(?:^|_)mlir\w*(?:gemm|conv|dot)"
        ),
        dtype=fields.words_dtype,
    ),
)
