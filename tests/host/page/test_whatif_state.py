"""What would become of measured gradients: the what-if panel, as the daemon works it out."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ampwatch.host.page.range_state import offered
from ampwatch.host.page.whatif_state import FARTHEST, Asked, WhatIfs
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import FATES, cast, fates
from ampwatch.report.words import percent
from ampwatch.wire.records import ALL_MODULES, Topic
from tests.numerics.oracle import histogram_of
from tests.workshop.fleets import fleet_of
from tests.workshop.records import FACTS, histogram, identity, ranges, step

if TYPE_CHECKING:
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.wire.records import RangeRecord

RUN = identity().run
SCALE = 16


def _gradients(plain: ExponentHistogram, module: str = ALL_MODULES, **changes: Any) -> RangeRecord:
    """Gradients that are ``plain`` without the loss scale."""
    scaled = {"step": 40, "loss_scale": 2.0**SCALE, **changes}
    return ranges(module, Topic.GRADIENT, plain.shifted(SCALE), **scaled)


def _asked(*records: RangeRecord, **choice: Any) -> dict[str, Any]:
    fleet = fleet_of(FACTS, step(1, loss_scale=2.0**SCALE), *records)
    state = WhatIfs(fleet).of(Asked(RUN, "0", **choice))
    told: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return told


def _random_histogram(rng: random.Random) -> ExponentHistogram:
    """Any: narrow, wide, empty in the middle, a subsample, all zeros, beyond every format."""
    counts = [rng.choice([0, 0, 1, rng.randrange(10**6)]) for _ in range(rng.randrange(1, 60))]
    counts[0], counts[-1] = counts[0] or 1, counts[-1] or 1
    first = rng.randrange(-160, 130)
    if rng.random() < 0.1:
        counts = []
    top = math.ldexp(rng.choice([1.0, rng.uniform(0.5001, 1.0)]), first + len(counts) - 1)
    bottom = math.ldexp(rng.uniform(0.5001, 1.0), first) if len(counts) > 1 else top
    extremes = {"amax": top, "amin": bottom} if counts else {}
    others = {"zeros": rng.randrange(100), "nans": rng.randrange(3)}
    numel = sum(counts) + sum(others.values()) + rng.choice([0, 0, 17])
    return histogram(first, *counts, **others, **extremes, numel=numel)


def test_bars_add_up_to_what_a_cast_does() -> None:
    """Over random histograms, in every format, at any scale; and all of it is JSON."""
    rng = random.Random(20)
    for plain in (_random_histogram(rng) for _ in range(60)):
        for fmt in offered().values():
            shift = rng.randrange(-140, 140)
            outcome, sums = cast(plain, fmt, shift), dict.fromkeys(FATES, 0)
            for fate, count in fates(plain, fmt, shift):
                sums[fate] += count

            assert sums["flushed"] == outcome.underflow
            assert sum(sums.values()) == plain.nonzero
            if not plain.is_subsample:
                assert outcome.overflow_low <= sums["overflows"] <= outcome.overflow_high
            state = _asked(_gradients(plain), format=fmt.name, exponent=shift)
            if plain.amax:
                shares = [bar[2] for bar in state["picture"]["bars"]]
                assert sum(shares) == pytest.approx(1.0)


def test_the_words_are_of_values_that_are_really_cast() -> None:
    """What PyTorch makes of them: zeros and infinities, counted; none lies in the bin where float16 ends."""
    exponents = torch.linspace(-40, 8, 1000, dtype=torch.float64)
    values = torch.exp2(exponents[(exponents < 3) | (exponents > 4)])
    plain = histogram_of(values.tolist())
    for exponent in (-8, 0, 12):
        scaled = (values * 2.0**exponent).to(torch.float16)
        state = _asked(_gradients(plain), format="float16", exponent=exponent)

        told = {fate: share for fate, _, share, _ in state["picture"]["fates"]}
        assert told["flushed"] == percent((scaled == 0).double().mean().item())
        assert told["overflows"] == percent(scaled.isinf().double().mean().item())
        assert told["flushed"] in state["outcome"]


@pytest.mark.parametrize("amax", [5e-324, 1.7e308])
@pytest.mark.parametrize("exponent", [-FARTHEST, 0, FARTHEST])
def test_numbers_at_the_ends_of_float64_are_json(amax: float, exponent: int) -> None:
    """A run that has gone wrong is the one that is looked at."""
    extreme = histogram(192, 1, amax=amax, amin=amax)
    record = ranges(ALL_MODULES, Topic.GRADIENT, extreme, dtype="float64", loss_scale=1.0)

    for name in offered():
        assert _asked(record, format=name, exponent=exponent)["outcome"]


def test_before_a_sample_there_is_nothing_and_a_rank_that_is_not_there_is_none() -> None:
    """The panel stays hidden."""
    assert _asked() == {}
    assert WhatIfs(fleet_of(FACTS)).of(Asked(RUN, "7")) is None
    assert WhatIfs(fleet_of(FACTS)).of(Asked("other", "0")) is None


def test_a_module_has_its_own_or_those_of_all() -> None:
    """And it says which; that of the model itself has a name."""
    wide, narrow = histogram(-30, 5, 7), histogram(-20, 5)
    both = (_gradients(wide), _gradients(narrow, "", step=39))

    assert _asked(*both, module="")["of"] == "gradient of (root module), step 39"
    assert _asked(*both)["of"] == "all gradients, step 40"
    other = _asked(*both, module="relu")
    assert (other["own"], other["of"]) == (
        False,
        "all gradients, step 40; relu has none of its own",
    )


def test_what_was_flushed_is_shown_as_it_was_before() -> None:
    """What was measured now, and since when, is beside it; the scales that bring it back are named."""
    before, now = histogram(-30, 5, 6, zeros=1), histogram(0, zeros=12)
    state = _asked(_gradients(now, flushed=11, before=before, before_step=30))

    assert state["cut"].startswith("▲ About 91.7 % of the elements are zero now")
    assert "measured before that, at step 30" in state["cut"]
    assert state["whole"] == "the non-zero elements"
    fits = {card["name"]: card["fits"] for card in state["formats"]}
    assert fits["float16"] == "fits_scaled"


@pytest.mark.parametrize(
    ("flushed", "words"),
    [(20, "were zero before they were measured, flushed by the format: raise"), (0, "")],
)
def test_what_was_lost_below_is_never_called_a_fit(flushed: int, words: str) -> None:
    """The histogram ends where the format does: a format that reaches lower has what is left."""
    state = _asked(_gradients(histogram(-40, 60, 20, zeros=20), flushed=flushed))

    assert words in state["cut"]
    fits = {card["name"]: card["fits"] for card in state["formats"]}
    assert fits["float16"] == ("cut" if flushed else "fits_scaled")
    assert fits["bfloat16"] == "fits"
    assert state["whole"] == ("what is left" if flushed else "the non-zero elements")


def test_what_overflowed_is_never_called_a_fit() -> None:
    """How large it would have been, nobody knows: more than fits at the scale of that time."""
    state = _asked(_gradients(histogram(-12, 50, 50, positive_infs=7)))

    assert state["cut"].startswith("▲ 7 infinite elements: overflowed before it was measured")
    assert {card["fits"] for card in state["formats"]} <= {"overflowed", "too_wide"}
    assert state["notes"].startswith("The scale must be below 2¹⁶, how far is not known")
    assert state["window"] == ""


def test_the_format_is_that_of_autocast_unless_another_one_is_chosen() -> None:
    """One that is not on offer is none."""
    record = _gradients(histogram(-12, 50))

    assert _asked(record)["format"] == "float16"
    assert _asked(record, format="bfloat16")["format"] == "bfloat16"
    assert _asked(record, format="float3")["format"] == "float16"
    assert {card["name"] for card in _asked(record)["formats"]} == {
        name for name, fmt in FORMATS.items() if fmt.is_offered
    }
