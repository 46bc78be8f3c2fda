"""The largest attention logit: exact where it is computed op by op, bounded where it is fused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from ampwatch.diagnosis.evidence.ops import LogitsRead
from ampwatch.training.sensors.ranges.logits import LogitSensor
from tests.training.sensors.listening import EVALUATED, Listening, inside

HEADS, LENGTH, SIZE = 3, 7, 16
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


@pytest.fixture
def listening() -> Listening:
    listening = Listening(LogitSensor)
    listening.place = inside("block.attention")
    return listening


def _given(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, HEADS, LENGTH, SIZE, generator=generator) * 4
    return query, key, value


def _exact(query: torch.Tensor, key: torch.Tensor, *, masked: bool = True) -> float:
    """The largest logit that is not masked, by a loop over float64."""
    largest = -math.inf
    for q_head, k_head in zip(
        query.double().flatten(0, 1), key.double().flatten(0, 1), strict=True
    ):
        for i, q in enumerate(q_head.tolist()):
            for k in k_head.tolist()[: i + 1 if masked else None]:
                logit = sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(SIZE)
                largest = max(largest, logit)
    return largest


def _reach(query: torch.Tensor, key: torch.Tensor) -> float:
    """The longest query times the longest key of the head with the largest product, by a loop over float64."""
    return max(
        max(math.hypot(*row) for row in q) * max(math.hypot(*row) for row in k)
        for q, k in zip(
            query.double().flatten(0, 1).tolist(), key.double().flatten(0, 1).tolist(), strict=True
        )
    )


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
    logits = query @ key.transpose(-1, -2) / math.sqrt(SIZE)
    return logits.masked_fill(CAUSAL, mask).softmax(-1).to(value.dtype) @ value


@pytest.mark.parametrize("mask", [-math.inf, -1e4])
@pytest.mark.parametrize("seed", range(4))
def test_a_logit_is_what_a_loop_over_float64_has(
    listening: Listening, seed: int, mask: float
) -> None:
    """Masked elements do not count, by whatever they are masked."""
    query, key, value = _given(seed)
    with listening:
        _attend(query, key, value, mask)
    (read,) = listening.seen

    assert isinstance(read, LogitsRead)
    assert read.largest == pytest.approx(_exact(query, key), rel=1e-5)
    assert read.reach == pytest.approx(_reach(query, key), rel=1e-5)
    assert (read.where, read.op, read.dtype, read.is_bound, read.step) == (
        *("block.attention", "_softmax", "float32", False),
        0,
    )


@pytest.mark.parametrize("is_in_place", [True, False])
def test_logits_that_are_capped_are_none(listening: Listening, *, is_in_place: bool) -> None:
    """They are bounded, however large queries and keys become."""
    query, key, value = _given()
    with listening:
        logits = query @ key.transpose(-1, -2) / 30.0
        logits = 30.0 * (logits.tanh_() if is_in_place else logits.tanh())
        logits.masked_fill(CAUSAL, -math.inf).softmax(-1) @ value

    assert listening.seen == []


def test_under_autocast_the_dtype_is_that_of_the_product(listening: Listening) -> None:
    """The softmax itself runs in float32; the numbers were rounded before."""
    query, key, value = _given()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        _attend(query, key, value, -math.inf)
    (read,) = listening.seen

    assert read.dtype == "float16"
    assert read.largest == pytest.approx(_exact(query.half(), key.half()), rel=2e-3)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_fused_attention_is_bounded_from_above(
    listening: Listening, scale: float | None, *, is_causal: bool
) -> None:
    """By norms, so by no less than the exact number, and head by head."""
    query, key, value = _given()
    with listening:
        scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)
    (read,) = listening.seen
    of_default = 1.0 if scale is None else scale * math.sqrt(SIZE)
    bound = _reach(query, key) / math.sqrt(SIZE) * of_default

    assert read.is_bound
    assert read.op.startswith("_scaled_dot_product")
    assert read.largest == read.reach == pytest.approx(bound, rel=1e-5)
    assert read.largest >= _exact(query, key, masked=is_causal) * of_default


def test_heads_that_share_a_key_are_bounded_together(listening: Listening) -> None:
    """Grouped queries."""
    query, key, value = _given()
    with listening:
        scaled_dot_product_attention(query, key[:, :1], value[:, :1], enable_gqa=True)
    largest = [read.largest for read in listening.seen]

    assert len(largest) == 1
    shared = key[:, :1].expand_as(key)
    assert largest[0] >= _exact(query, shared, masked=False) * (1 - 1e-5)


def test_calls_of_one_module_count_as_one(listening: Listening) -> None:
    """Micro-batches: the largest of all."""
    calls = [_given(seed) for seed in range(3)]
    with listening:
        for given in calls:
            _attend(*given, -math.inf)
    (read,) = listening.seen

    assert read.largest == pytest.approx(max(_exact(q, k) for q, k, _ in calls), rel=1e-5)


def test_sequences_without_a_word_are_no_logits(listening: Listening) -> None:
    """What is empty has no largest element; what follows is measured anyway."""
    empty = torch.randn(2, 0, SIZE)
    with listening:
        (torch.bmm(empty, empty.mT) / 4).softmax(-1)
        (torch.baddbmm(torch.zeros(1), torch.randn(2, 3, 4), torch.randn(2, 4, 3)) / 4).softmax(-1)
    (read,) = listening.seen

    assert read.reach > 0


def test_a_softmax_of_no_product_of_activations_is_none(listening: Listening) -> None:
    """Routers, losses, and weights of a mixture."""
    with listening:
        (torch.randn(2, LENGTH, SIZE) @ torch.randn(SIZE, 4)).softmax(-1)
        torch.randn(2, HEADS, LENGTH, LENGTH).softmax(-1)
        torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 4, 3)).relu()
        torch.nn.functional.cross_entropy(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))

    assert listening.seen == []


def test_an_evaluation_is_not_measured(listening: Listening) -> None:
    """Its batches are others."""
    listening.place = EVALUATED
    with listening:
        _attend(*_given(), -math.inf)

    assert listening.seen == []
