"""Penalties and weight decay that a program adds to gradients by hand, with the loss scale and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.sensors.calls import added_terms

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 4096.0
WEIGHT = 0.02

Step = "Callable[[list[nn.Parameter], torch.amp.GradScaler], None]"


def train(
    change: Step,
    *,
    unscales: bool = False,
    level: str = "deep",
    plain: bool = False,
    place: Step | None = None,
    accumulate: int = 1,
) -> tuple[list[torch.Tensor], list[Finding]]:
    """Return the weights in the end, and what is said of mixed gradients; with level ``off`` nothing is watched.

    Args:
        change: Changes gradients after backward.
        unscales: Whether they are unscaled before.
        level: Of watching.
        plain: Whether there is no loss scale.
        place: Places hooks, before anything is watched.
        accumulate: Calls of backward to a step.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=not plain)
    parameters = list(model.parameters())
    if place is not None:
        place(parameters, scaler)

    def loop() -> None:
        for _ in range(6):
            scaler.get_scale()  # as programs do, to see whether a step was skipped
            optimizer.zero_grad()
            for _ in range(accumulate):
                x = torch.randn(16, 8)
                with torch.autocast("cpu", dtype=torch.float16):
                    out = model(x)
                scaler.scale((out.float() - 1.0).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            change(parameters, scaler)
            scaler.step(optimizer)
            scaler.update()

    if level == "off":
        loop()
        return parameters, []
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        loop()
        assert not any(guard.off for guard in watch._session.bus.guards)
    return parameters, [f for f in watch.findings if f.kind == "mixed_scaled_backward"]


def _grads(parameters: list[nn.Parameter]) -> list[Any]:
    return [p.grad for p in parameters]


def slims(parameters: list[nn.Parameter], _scaler: Any) -> None:
    parameters[2].grad.data.add_(WEIGHT * torch.sign(parameters[2].data))


def decays(parameters: list[nn.Parameter], _scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(p.detach(), alpha=WEIGHT)


@torch.no_grad()
def decays_anew(parameters: list[nn.Parameter], _scaler: Any) -> None:
    for p in parameters:
        p.grad = p.grad + WEIGHT * p


@torch.no_grad()
def decays_all(parameters: list[nn.Parameter], _scaler: Any) -> None:
    torch._foreach_add_(_grads(parameters), torch._foreach_mul(parameters, WEIGHT))


def makes_in_place(parameters: list[nn.Parameter], _scaler: Any) -> None:
    parameters[0].grad.sub_(parameters[0].detach().clone().mul_(WEIGHT).neg_())


WRONG = [slims, decays, decays_anew, decays_all, makes_in_place]


@pytest.mark.parametrize("change", WRONG)
def test_a_term_without_the_scale_is_found(change: Step) -> None:
    """However it is written."""
    (finding,) = train(change)[1]

    assert (finding.where, finding.phase) == ("optimizer:0", "backward")
    assert "made of weights alone" in finding.summary
    assert finding.evidence["loss_scale"] == SCALE
    assert "test_added_terms.py" in finding.source


@pytest.mark.rotating
@pytest.mark.parametrize("change", WRONG)
def test_after_unscale_it_is_right(change: Step) -> None:
    """Then gradients have no scale either."""
    assert train(change, unscales=True)[1] == []


def test_without_an_enabled_scaler_it_is_right() -> None:
    """Nothing is multiplied by anything, after backward or in a hook of it."""
    assert train(decays, plain=True)[1] == []
    assert train(nothing, place=WRONG_HOOKS[0], plain=True)[1] == []


def scales_the_number(parameters: list[nn.Parameter], scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(p.detach(), alpha=WEIGHT * scaler.get_scale())


def scales_the_term(parameters: list[nn.Parameter], scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(WEIGHT * p.detach().sign() * scaler.get_scale())


def scales_with_the_scaler(parameters: list[nn.Parameter], scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(scaler.scale(WEIGHT * p.detach()))


@torch.no_grad()
def adds_what_gradients_were_made_of(parameters: list[nn.Parameter], _scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(WEIGHT * p.grad.norm() * p.sign())


def adds_a_buffer(parameters: list[nn.Parameter], _scaler: Any) -> None:
    for p in parameters:
        p.grad.add_(torch.ones_like(p.grad), alpha=WEIGHT)


def divides_by_hand(parameters: list[nn.Parameter], scaler: Any) -> None:
    for p in parameters:
        p.grad.data.div_(SCALE)
    decays(parameters, scaler)
    for p in parameters:
        p.grad.data.mul_(SCALE)


def divides_anew(parameters: list[nn.Parameter], scaler: Any) -> None:
    for p in parameters:
        p.grad = (p.grad / SCALE + WEIGHT * p.detach()) * SCALE


def changes_the_weights(parameters: list[nn.Parameter], _scaler: Any) -> None:
    with torch.no_grad():
        for p in parameters:
            p.add_(p.sign(), alpha=-WEIGHT * 1e-3)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "change",
    [
        scales_the_number,
        scales_the_term,
        scales_with_the_scaler,
        adds_what_gradients_were_made_of,
        adds_a_buffer,
        divides_by_hand,
        divides_anew,
        changes_the_weights,
    ],
)
def test_what_may_have_the_scale_in_it_is_let_go(change: Step) -> None:
    """In a number, in a tensor, or because gradients were divided meanwhile."""
    assert train(change)[1] == []


@pytest.mark.rotating
@pytest.mark.parametrize("width", [8, 64])
def test_a_gradient_in_memory_that_a_weight_has_left_is_no_weight(width: int) -> None:
    """Sharpness-aware minimisation puts other tensors into the parameters between calls of backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    parameters = list(model.parameters())

    def backward(x: torch.Tensor) -> list[Any]:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale((out.float() - 1.0).square().mean()).backward()
        return _grads(parameters)

    with ampwatch.monitor(model, scaler, level="deep", serve=False) as watch:
        for _ in range(8):
            x = torch.randn(16, width)
            ascent = [g * (0.05 / SCALE) for g in backward(x)]
            for p, step in zip(parameters, ascent, strict=True):
                p.data = p.data + step
            above = backward(x)
            for p, step in zip(parameters, ascent, strict=True):
                p.data = p.data - step
            for gradient, other in zip(backward(x), above, strict=True):
                gradient.add_(other, alpha=0.7)
            del gradient, other, above
            scaler.step(optimizer)
            scaler.update()

    assert [f for f in watch.findings if f.kind == "mixed_scaled_backward"] == []


# In hooks of backward.


def nothing(_parameters: list[nn.Parameter], _scaler: Any) -> None:
    """Leave gradients as they are after backward."""


def void(_: object) -> None:
    """Return nothing, as such hooks have to."""


def _of_each(hook: Any) -> Step:
    """Return what has the gradient of each parameter changed by a function of it, the weight and the scaler."""

    def place(parameters: list[nn.Parameter], scaler: Any) -> None:
        for p in parameters:
            p.register_hook(lambda g, p=p: hook(g, p.detach(), scaler))

    return place


def _of_each_late(hook: Any) -> Step:
    """Return the same for what is done once the gradient has arrived."""

    def place(parameters: list[nn.Parameter], scaler: Any) -> None:
        for p in parameters:
            p.register_post_accumulate_grad_hook(lambda p: void(hook(p.grad, p.detach(), scaler)))

    return place


WRONG_HOOKS = [
    _of_each(lambda g, p, _: g + WEIGHT * p),
    _of_each(lambda g, p, _: g.add(p.sign(), alpha=WEIGHT)),
    _of_each(lambda g, p, _: g.add_(WEIGHT * p)),
    _of_each(lambda g, p, _: g.clone().add_(p, alpha=WEIGHT)),
    _of_each_late(lambda g, p, _: g.add_(p, alpha=WEIGHT)),
]


@pytest.mark.rotating
@pytest.mark.parametrize("place", WRONG_HOOKS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_term_that_a_hook_adds_without_the_scale_is_found(place: Step, accumulate: int) -> None:
    """On its way to the parameter, or where it has arrived."""
    (finding,) = train(nothing, place=place, accumulate=accumulate)[1]

    assert (finding.where, finding.phase) == ("optimizer:0", "backward")
    assert "test_added_terms.py" in finding.source


@pytest.mark.rotating
@pytest.mark.parametrize(
    "place",
    [
        _of_each(lambda g, p, s: g + s.get_scale() * WEIGHT * p),
        _of_each(lambda g, p, s: g + s.scale(WEIGHT * p)),
        _of_each(lambda g, p, _: (g / SCALE + WEIGHT * p) * SCALE),
        _of_each(lambda g, p, _: g.mul_(1 / SCALE).add_(p, alpha=WEIGHT).mul_(SCALE)),
        _of_each(lambda g, p, _: (g + WEIGHT * p).mul_(3.0)),
        _of_each(lambda g, _p, _s: g + WEIGHT * g.sign()),
        _of_each(lambda g, _p, _s: g - g.mean()),
        _of_each(lambda g, _p, _s: g + WEIGHT * torch.ones_like(g)),
        _of_each_late(lambda g, p, _: g.div_(SCALE).add_(p, alpha=WEIGHT).mul_(SCALE)),
    ],
)
def test_what_a_hook_adds_may_have_the_scale_in_it(place: Step) -> None:
    """In a number, in a tensor, or because the gradient was divided or changed otherwise."""
    assert train(nothing, place=place)[1] == []


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("change", "place"),
    [(decays_anew, None), (decays_all, None), (nothing, WRONG_HOOKS[0])],
)
def test_the_training_is_as_it_would_be_without(change: Step, place: Step | None) -> None:
    """Bit for bit."""
    weights, unwatched = (train(change, place=place, level=level)[0] for level in ("deep", "off"))

    assert all(torch.equal(a, b) for a, b in zip(weights, unwatched, strict=True))


def test_at_standard_it_is_found_in_the_steps_that_are_sampled() -> None:
    """The first ones are."""
    assert len(train(decays, level="standard")[1]) == 1


def test_no_more_is_remembered_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that makes terms for ever takes no more memory."""
    monkeypatch.setattr(added_terms, "MAX_KEPT", 0)

    assert train(slims)[1] == []
