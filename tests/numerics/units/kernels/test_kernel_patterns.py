"""The setting for a user's own kernels is checked at set-up, with an error that helps."""

from __future__ import annotations

import pytest

from ampwatch.errors import SettingsError
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.numerics.units.kernels.kernel_patterns import parse_patterns


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
