"""Replays of failed steps: a fault of one single step is named, and remedies are tried on its batch."""

from __future__ import annotations

import math
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import nn

import ampwatch
from ampwatch.training.iteration import programs
from ampwatch.training.iteration.governor import Governor
from ampwatch.training.replay import sensor as replaying
from ampwatch.training.replay.inquiry import Pace
from ampwatch.training.replay.replay import Replay, _without_warnings
from ampwatch.training.sensors.ops.census import OpCensusSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from ampwatch import Finding

FAULTY = 40
"""The step of the fault: after the opening, in which every op is followed."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.fault: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.fault(nn.functional.gelu(self.up(x))))


class Net(nn.Module):
    def __init__(self, *, returns_loss: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)
        self.returns_loss = returns_loss

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return (
            {"loss": logits.float().square().mean(), "logits": logits}
            if self.returns_loss
            else logits
        )


def boost(x: Tensor) -> Tensor:
    return x * 3e6


def square(x: Tensor) -> Tensor:
    return (x * 3000) ** 2


def total(x: Tensor) -> Tensor:
    return (x + 6e4).sum(-1, keepdim=True) + x


def train(
    fault: Callable[[Tensor], Tensor] | None,
    *,
    level: str = "standard",
    backend: str = "",
    dtype: torch.dtype = torch.float16,
    in_loss: bool = False,
    net: Net | None = None,
    init_scale: float = 1024.0,
    failing: tuple[int, ...] = (FAULTY,),
    **settings: Any,
) -> tuple[list[Finding], str]:
    """Train with a fault in one step, or in some; return the findings, and the report."""
    torch.manual_seed(0)
    net = net or Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale) if dtype is torch.float16 else None
    model: Any = torch.compile(net, backend=backend) if backend else net
    with ampwatch.monitor(
        net, scaler, optimizer=optimizer, level=level, serve=False, **settings
    ) as watch:
        for step in range(failing[-1] + 6):
            change = fault if fault is not None and step in failing else lambda x: x
            net.blocks[1].fault = (lambda x: x) if in_loss else change
            with torch.autocast("cpu", dtype=dtype):
                out = model(torch.randn(4, 8))
                if in_loss:
                    out = change(out)
                loss = out["loss"] if isinstance(out, dict) else out.float().square().mean()
            optimizer.zero_grad()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        report = watch.report()
    return [f for f in watch.findings if f.op or f.kind.startswith(("forward", "param"))], report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("fault", "op", "backend"),
    [
        (boost, "mul", ""),
        (square, "pow", "aot_eager"),
        pytest.param(boost, "mul", "aot_eager", marks=pytest.mark.nightly),
        pytest.param(square, "pow", "", marks=pytest.mark.nightly),
        pytest.param(total, "sum", "", marks=pytest.mark.nightly),
        pytest.param(total, "sum", "eager", marks=pytest.mark.nightly),
    ],
)
def test_a_fault_of_one_step_is_named_with_its_op_and_module(
    fault: Callable[[Tensor], Tensor], op: str, backend: str
) -> None:
    """At `standard`, long after the opening; also where the model is compiled."""
    # Not followed while it fails, as a sample of ops on a busy machine would be: that one runs eagerly.
    (found, *_), _ = train(fault, backend=backend, sample_every=1000)

    assert (found.kind, found.where, found.op) == ("forward_overflow", "blocks.1", op)
    assert found.first_step == FAULTY
    assert found.root
    assert ("made again eagerly" in found.summary) is (backend != "")


compiled: Any = None


def double(x: Tensor) -> Tensor:
    doubled: Tensor = compiled(x)
    return doubled


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at
@pytest.mark.parametrize("is_part", [False, True], ids=["before the monitor", "in the model"])
def test_a_model_is_heard_also_where_something_else_is_compiled(
    monkeypatch: pytest.MonkeyPatch, *, is_part: bool
) -> None:
    """Two sensors listen to its calls: both have to, once what is compiled has been traced."""
    monkeypatch.setitem(globals(), "compiled", torch.compile(lambda x: x * 2.0, backend="eager"))
    net = Net()
    if is_part:
        net.blocks[0].fault = double
    else:
        double(torch.ones(3))

    (found, *_), report = train(boost, net=net)

    assert (found.kind, found.where, found.op) == ("forward_overflow", "blocks.1", "mul")
    assert "not seen" not in report


@pytest.mark.parametrize(
    ("change", "op"),
    [
        (lambda x: (x.float() + 100).exp(), "exp"),
        pytest.param(lambda x: (x.float() * 1e30) ** 2, "pow", marks=pytest.mark.nightly),
    ],
)
def test_without_a_scaler_the_op_is_named_before_the_weights_break(change: Any, op: str) -> None:
    """And what breaks of them is its consequence."""
    found, _ = train(change, dtype=torch.bfloat16)

    (named,) = [f for f in found if f.where == "blocks.1"]
    assert (named.op, named.first_step, named.phase) == (op, FAULTY, "forward")
    assert [f.kind for f in found if f.root] == ["forward_overflow"]


def root_of_zero(x: Tensor) -> Tensor:
    return (x.float() * 0).sqrt().to(x.dtype) + x


def test_without_a_scaler_a_derivative_is_named_before_the_weights_break() -> None:
    """Of a loss that is finite: the replica shows it."""
    found, _ = train(root_of_zero, dtype=torch.bfloat16)

    (root,) = [f for f in found if f.root]
    assert (root.kind, root.first_step) == ("backward_nonfinite_any_scale", FAULTY)
    assert root.where.startswith("param:blocks.1.up")


class Root(nn.Linear):
    """Takes the root of a square, which is zero where the first element of its input is."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * x[:, :1]).square().sqrt()


class CarefulSgd(torch.optim.SGD):
    """Steps with finite gradients only."""

    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        return super().step(closure) if all(g.isfinite().all() for g in gradients) else None


@pytest.mark.rotating
@pytest.mark.parametrize("how", ["in the loop", "before the step", "in the step", "not", "apart"])
def test_a_gradient_that_the_program_mends_is_no_fault(how: str) -> None:
    """In its loop, in a hook before the step, or in a step of its own; one of ``autograd.grad`` is one as any other."""
    torch.manual_seed(0)
    net = Root(8, 4)
    kind = CarefulSgd if how == "in the step" else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=1e-3)

    def mend(*_: Any) -> None:
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_()

    if how == "before the step":
        optimizer.register_step_pre_hook(mend)
    with ampwatch.monitor(net, optimizer=optimizer, serve=False) as watch:
        for step in range(FAULTY + 3):
            optimizer.zero_grad()
            x = torch.randn(4, 8)
            x[0, 0] *= step != FAULTY
            loss = net(x).mean()
            if how == "apart":
                made = torch.autograd.grad(loss, list(net.parameters()))
                for parameter, gradient in zip(net.parameters(), made, strict=True):
                    parameter.grad = gradient
            else:
                loss.backward()
            if how == "in the loop":
                mend()
            optimizer.step()

    kinds = {f.kind for f in watch.findings}
    assert ("backward_nonfinite_any_scale" in kinds) == (how in ("not", "apart"))


@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_weights_that_a_gradient_computed_apart_has_broken_are_reported_at_once(eps: float) -> None:
    """No loss tells of ``autograd.grad``, and no replay shows what a loss outside of the model has done."""
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with ampwatch.monitor(net, optimizer=optimizer, serve=False) as watch:
        for step in range(FAULTY + 3):
            x = torch.randn(4, 8)
            x[0, 0] *= step != FAULTY
            loss = ((net(x) * x[:, :1]).square() + eps).sqrt().mean()
            net.weight.grad, net.bias.grad = torch.autograd.grad(loss, (net.weight, net.bias))
            optimizer.step()

    found = [f for f in watch.findings if f.kind == "param_nonfinite"]
    assert [f.first_step for f in found] == ([] if eps else [FAULTY])
    assert len([f for f in watch.findings if f.root and f.severity != "info"]) == len(found)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("change", "op", "kind"),
    [
        (lambda x: (x + 30).exp(), "exp", "forward_overflow"),
        (lambda x: (x * 0).log(), "log", "forward_nan_underflow"),
    ],
)
def test_an_op_of_the_loss_is_found_in_the_graph(change: Any, op: str, kind: str) -> None:
    """No replay of a model shows it: the loss is code of the user's, outside of every module."""
    (found, *_), _ = train(change, in_loss=True)

    assert (found.kind, found.where, found.op) == (kind, "loss", op)


def weighted(out: Tensor, target: Tensor) -> Tensor:
    return (out.square() * target).mean()


def by_itself(out: Tensor, target: Tensor) -> Tensor:
    return (out * (out + target).detach()).mean()


@pytest.mark.parametrize(
    ("loss_of", "op"), [(nn.functional.mse_loss, "mse_loss"), (weighted, "mul"), (by_itself, "mul")]
)
@pytest.mark.parametrize("bad", ["target", "output"])
def test_what_a_loss_is_given_besides_the_output_of_the_model_is_named(
    loss_of: Callable[[Tensor, Tensor], Tensor], op: str, bad: str
) -> None:
    """Before it breaks the weights, and not where the model itself has made what is not finite."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, optimizer=optimizer, serve=False, sample_every=1000) as watch:
        for step in range(FAULTY + 2):
            x, target = torch.randn(4, 8), torch.randn(4, 4)
            if step == FAULTY:
                (target if bad == "target" else x)[1, 2] = math.nan
            loss = loss_of(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (found, *_) = (f for f in watch.findings if f.root)
    assert (found.kind, found.first_step) == ("nonfinite_input", FAULTY)
    assert found.where == ("loss" if bad == "target" else "")
    assert (f"{op} outside of the model read NaN" in found.summary) is (bad == "target")


@pytest.mark.rotating
def test_a_derivative_that_is_infinite_in_one_step_is_named() -> None:
    """The loss is not the model's, so backward of the replica begins with gradients of one."""
    (found, *_), _ = train(root_of_zero)

    assert (found.kind, found.first_step) == ("backward_nonfinite_any_scale", FAULTY)
    assert found.where == "param:blocks.1.up.weight"


@pytest.mark.rotating
def test_a_gradient_that_only_the_scale_makes_overflow_is_the_scalers_business() -> None:
    """Backward of the replica has nothing to say about it."""
    found, _ = train(None, init_scale=2.0**30)

    assert not found


@pytest.mark.rotating
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_an_op_of_a_compiled_loss_is_followed() -> None:
    """Autograd runs compiled forwards without recording gradients, and they are no evaluation."""
    fault = torch.compile(lambda x: (x + 300) ** 2, backend="aot_eager")
    (found, *_), _ = train(fault, in_loss=True, level="deep")

    assert (found.kind, found.where, found.op) == ("forward_overflow", "loss", "pow")


@pytest.mark.rotating
def test_a_model_that_returns_its_loss_is_replayed_with_its_backward() -> None:
    """Where forward is finite and backward is not: the square root of zero."""
    (found, *_), _ = train(root_of_zero, net=Net(returns_loss=True))

    assert found.kind == "backward_nonfinite_any_scale"
    assert found.first_step == FAULTY


@pytest.mark.rotating
def test_what_cures_it_on_the_batch_that_failed_comes_first_in_the_advice() -> None:
    """The textbook remedy does not: the next block overflows in its cast; bfloat16 does."""
    (found, *_), _ = train(boost)

    assert found.advice.startswith(
        f"Use bfloat16 instead of float16 (tried on the batch of step {FAULTY}"
    )
    assert "blocks.1 in float32 (then" in found.advice.partition("Also possible: ")[0]


@pytest.mark.rotating
def test_at_deep_the_remedies_are_tried_as_well() -> None:
    """There the op is known already."""
    (found, *_), _ = train(boost, level="deep")

    assert "tried on the batch" in found.advice
    assert found.count == 1


def test_a_replay_warns_of_nothing_and_leaves_later_warnings_as_they_were(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The forward pass warns once in each step, however often it is repeated."""

    class Warns(Net):
        def forward(self, x: Tensor) -> Any:
            warnings.warn("of the forward pass", stacklevel=1)
            return super().forward(x)

    warnings.simplefilter("always")
    before = warnings.warn
    (found, *_), _ = train(boost, net=Warns())

    assert found.op == "mul"
    assert len([w for w in recwarn if "of the forward pass" in str(w.message)]) == FAULTY + 6
    assert warnings.warn is before


def test_replays_that_overlap_leave_the_warnings_of_each_thread_as_they_were(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The one that began first ends first: what it has put back is not taken away by the other."""
    warnings.simplefilter("always")
    before = warnings.warn
    here: list[Callable[[], object]] = []
    there: list[Callable[[], object]] = []
    with ThreadPoolExecutor(1) as another:
        _without_warnings(here)
        warnings.warn("unheard", stacklevel=1)
        another.submit(_without_warnings, there).result()
        here.pop()()
        warnings.warn("heard", stacklevel=1)
        another.submit(warnings.warn, "unheard", stacklevel=1).result()
        another.submit(there.pop()).result()

    assert warnings.warn is before
    assert [str(w.message) for w in recwarn] == ["heard"]


@pytest.mark.rotating
def test_a_setting_switches_it_off() -> None:
    """Then a fault of one step is not named, and nothing is kept."""
    # Not followed while it fails, as above.
    found, _ = train(boost, replay="off", sample_every=1000)

    assert not found


class Masked(nn.Module):
    """Attention whose mask may leave a row nothing, with a break of the graph after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 4)
        self.is_masked, self.longest = False, 0

    def forward(self, x: Tensor) -> Tensor:
        scores = self.inner(x) @ x.transpose(1, 2)
        allowed = torch.ones(6, 6, dtype=torch.bool).tril()
        if self.is_masked:
            allowed = allowed & (torch.arange(6) > 1)
        shares = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        self.longest = max(self.longest, allowed.sum(-1).max().item())
        return self.out(shares @ x)


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports, and does after a break
def test_an_iteration_whose_compiled_ops_cannot_be_followed_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the opening, in which every other op is followed: without a scaler, before the weights break.

    Of this iteration and of those after it, no op that only reads what fused code has made is named.
    """
    monkeypatch.setattr(Governor, "is_short", True)  # also on a busy machine
    torch.manual_seed(0)
    net = Masked()
    model = torch.compile(net, backend="inductor")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with ampwatch.monitor(net, optimizer=optimizer, serve=False) as watch:
        for step in range(8):
            net.is_masked = step >= 5
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(torch.randn(2, 6, 8))
            out.float().square().mean().backward()
            optimizer.step()

    origin = next(f for f in watch.findings if f.root)
    assert (origin.kind, origin.op, origin.first_step) == ("masked_row_nan", "_softmax", 5)
    assert "forward_overflow" not in {f.kind for f in watch.findings}


OTHER = nn.Linear(8, 8)


class CallsAnother(Net):
    """Runs a model that is not part of it."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x + 0 * OTHER(x))


class Shared(Net):
    """Is its own copy."""

    def __deepcopy__(self, _memo: Any) -> Shared:
        return self


def replaced() -> Net:
    net = Net()
    forward = net.forward
    net.forward = lambda x: forward(x + 0)  # type: ignore[method-assign]
    return net


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (CallsAnother, "its forward calls a Linear that is not part of it"),
        pytest.param(
            replaced,
            "the forward of a Net was replaced on the instance",
            marks=pytest.mark.nightly,
        ),
        pytest.param(Shared, "which has a way of its own to be copied", marks=pytest.mark.nightly),
    ],
)
def test_why_a_step_was_not_replayed_is_in_the_report(make: Callable[[], Net], words: str) -> None:
    """In words."""
    found, report = train(boost, net=make())

    assert not found
    assert words in " ".join(report.split())


@pytest.mark.rotating
def test_what_another_part_has_computed_is_not_taken_for_data() -> None:
    """Of two models that are called one after the other the first one overflows, and is not heard."""
    torch.manual_seed(0)
    encoder = nn.ModuleDict({"in": nn.Linear(8, 8)})
    decoder = nn.Linear(8, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    with ampwatch.monitor([encoder, decoder], scaler, optimizer=optimizer, serve=False) as watch:
        for step in range(FAULTY + 2):
            with torch.autocast("cpu", dtype=torch.float16):
                hidden = encoder["in"](torch.randn(4, 8)) * (1e6 if step == FAULTY else 1.0)
                loss = decoder(hidden).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert not [f for f in watch.findings if f.kind == "nonfinite_input"]


@pytest.mark.rotating
def test_no_memory_ends_it_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training goes on, and the report says so. The graph of a later loss is left alone as well.

    Where it begins is not known then, and what is before it may be freed, as in FSDP.
    """
    asked: list[Any] = []

    def run(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Replay, "run", run)
    monkeypatch.setattr(replaying, "loss_trace", lambda *given: asked.append(given))
    found, report = train(boost, in_loss=True, failing=(FAULTY, FAULTY + 40))

    assert not found
    assert [step for _, _, step in asked] == [FAULTY]
    assert "there was no memory for a replay" in " ".join(report.split())


def test_a_storm_is_not_replayed_step_by_step() -> None:
    """Ever more seldom where nothing is found; after that only once in a while."""
    pace = Pace()
    replayed = [
        step
        for step in range(300)
        if pace.allows(step) and not pace.replayed(step, explained=False)
    ]
    assert replayed[:6] == [0, 2, 6, 14, 30, 62]
    assert len(replayed) < 12

    pace.replayed(300, explained=True)
    assert not pace.allows(301)
    assert pace.allows(400)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("fault", "dtype"),
    [(boost, torch.float16), (lambda x: x * 1e30 * 1e30, torch.bfloat16)],
    ids=["skipped", "weights broken"],
)
def test_a_failure_whose_op_was_named_is_let_alone(
    fault: Callable[[Tensor], Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the steps 51 to 200 of it two are replayed or followed at most, and one is."""
    closer: list[int] = []
    replayed, begin = Pace.replayed, OpCensusSensor.begin

    def note_replay(self: Pace, step: int, *, explained: bool) -> None:
        closer.append(step)
        replayed(self, step, explained=explained)

    def note_ops(self: OpCensusSensor, step: int = 0, *, count: bool, follow: bool) -> bool:
        closer.extend([step] * (follow and not count))
        return begin(self, step, count=count, follow=follow)

    monkeypatch.setattr(Pace, "replayed", note_replay)
    monkeypatch.setattr(OpCensusSensor, "begin", note_ops)
    found, _ = train(fault, dtype=dtype, failing=tuple(range(FAULTY, FAULTY + 200)))

    assert "mul" in {f.op for f in found}
    # What comes after the failure is none of it.
    assert 1 <= len([step for step in closer if FAULTY + 50 < step < FAULTY + 200]) <= 2


@pytest.mark.rotating
def test_outputs_of_modules_inside_of_compiled_code_are_measured_on_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they are where nothing is compiled: same modules, same largest magnitudes."""
    # Each sample is of all modules, however busy the machine is.
    monkeypatch.setattr("ampwatch.training.iteration.governor.WORST_SHARE", math.inf)
    measured = []
    for how in ("eager", "compiled"):
        programs.forget()  # a second fit of one program is looked at less
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model: Any = torch.compile(net, backend="aot_eager") if how == "compiled" else net
        # Nothing moves: what is measured in one step is what is measured in the next.
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        x = torch.randn(4, 8)
        with ampwatch.monitor(
            net, scaler, optimizer=optimizer, serve=False, replay="sampled", sample_every=1
        ) as watch:
            kept: list[Any] = []
            deliver = watch._session.diagnosis.deliver
            watch._session._ledger._judge = _Keeping(watch._session.diagnosis, kept, deliver)
            for _ in range(32):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(x).float().square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        outputs = {
            r.name: r.histogram.amax
            for iteration in kept
            for r in iteration.ranges
            if r.topic.name == "ACTIVATION"
        }
        measured.append(outputs)

    assert measured[0] == measured[1]
    assert set(measured[0]) == {"0", "1", "2"}


class _Keeping:
    """A diagnosis that keeps what is delivered to it."""

    def __init__(self, diagnosis: Any, kept: list[Any], deliver: Any) -> None:
        self.attention = diagnosis.attention
        self._kept, self._deliver = kept, deliver

    def deliver(self, *iterations: Any) -> None:
        self._kept += iterations
        self._deliver(*iterations)
