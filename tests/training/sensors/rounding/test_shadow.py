"""The float32 shadow of a tensor in half precision, and which tensors have one."""

from __future__ import annotations

import pytest
import torch

from ampwatch.training.sensors.rounding.shadow import Shadow, Shadows, added_of, is_stuck, now_of


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_shadow_knows_what_an_element_would_be_and_which_one_is_stuck(dtype: torch.dtype) -> None:
    """A scalar loop in float64 does, beside the same tensor."""
    total, added = torch.full((3,), 2.0**12).to(dtype), torch.tensor([0.0, 1.0, 2.0**6])
    exact = total.double()
    shadow = Shadow(now_of(total, 64), total.float())
    for _ in range(40):
        before = total.clone()
        total += added.to(dtype)
        exact += added
        shadow.add(now_of(total, 64), added)

    assert shadow.exact.tolist() == exact.tolist()
    assert shadow.additions == 40
    assert is_stuck(shadow.now, added).tolist() == (total == before).tolist() == [True, True, False]
    assert float(shadow.error) == pytest.approx(float((total - exact).norm() / exact.norm()))

    shadow.begin(total == before)
    assert shadow.exact.tolist() == [2.0**12, 2.0**12, exact[2]]
    assert shadow.additions.tolist() == [0, 0, 40]


def test_a_tensor_that_is_gone_or_has_another_owner_has_no_shadow() -> None:
    """Nor has what lies in its place; one that is computed anew takes it along, and a full house takes in no more."""
    shadows, shadow = Shadows(1), Shadow()
    first, second = torch.ones(4), torch.ones(4)
    assert shadows.put(first, shadow, "pool")
    assert shadows.of(first, "pool") is shadow
    assert shadows.of(first.view(2, 2), "pool") is shadows.of(first) is None
    assert not shadows.put(second, Shadow(), "pool")

    assert shadows.put(second, shadow, "pool")
    assert shadows.of(first, "pool") is None
    assert shadows.of(second, "pool") is shadow
    address = second.data_ptr()
    del second
    assert shadows.of(first, "pool", address) is None
    assert shadows.put(first, Shadow())


def test_the_one_that_was_added_to_longest_ago_makes_room_if_it_may() -> None:
    """As in a forward pass, whose graph keeps all of them."""
    shadows, tensors = Shadows(2, drops=True), [torch.ones(4) for _ in range(3)]
    first, second, third = Shadow(), Shadow(), Shadow()
    for tensor, shadow in zip(
        (*tensors[:2], tensors[0], tensors[2]), (first, second, first, third), strict=True
    ):
        assert shadows.put(tensor, shadow)

    assert [shadows.of(t) for t in tensors] == [first, None, third]


@pytest.mark.parametrize(
    ("addend", "added"),
    [(2, [2.0] * 4), (torch.tensor(3.0), [3.0] * 4), (torch.arange(4), [0, 1, 2, 3]), ("2", None)],
    ids=["number", "scalar", "tensor", "neither"],
)
def test_what_is_added_is_expanded(addend: object, added: list[float] | None) -> None:
    """To the shape of the sum, of which as many elements are followed."""
    elements = added_of(addend, torch.ones(4), 64)

    assert (None if elements is None else elements.tolist()) == added
