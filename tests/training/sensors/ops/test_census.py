"""The op census of whole iterations: phases, threads, wrappers, and what it must not disturb."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ampwatch.numerics.units.ops import OpKind, Phase
from ampwatch.training.sensors.ops import census as census_module
from tests.training.sensors.counting import Counted
from tests.trainings import Net

FORWARD, BACKWARD, OPTIMIZER, EVAL = Phase


def x() -> torch.Tensor:
    return torch.randn(4, 8)


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def test_the_phases_of_a_step() -> None:
    """Forward with its loss, backward, and all that the scaler and the optimizer do."""
    model = Net()
    optimizer = sgd(model, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with Counted(model) as counted:
        loss = model(x()).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    of = {phase: set(counted.by("op", phase=phase)) for phase in Phase}
    assert {"addmm", "relu", "pow", "mean"} <= of[FORWARD]
    assert {"mm", "threshold_backward"} <= of[BACKWARD]
    assert {
        "_amp_foreach_non_finite_check_and_unscale_",
        "_amp_update_scale_",
        "_foreach_norm",
        "_foreach_mul_",
        "reciprocal",
    } <= of[OPTIMIZER]
    assert not of[OPTIMIZER] & {"addmm", "mm", "pow", "mean"}
    assert of[EVAL] == set()


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_what_runs_without_gradients_is_evaluation(without: Callable[[], Any]) -> None:
    """In the midst of an iteration, after its first forward."""
    model = nn.Linear(8, 8)
    with Counted(model) as counted:
        model(x())
        with without():
            model(x()).exp()

    assert counted.sum(phase=FORWARD, kind=OpKind.MATMUL) == 1
    assert counted.sum(phase=EVAL, kind=OpKind.MATMUL) == 1
    assert counted.sum("flops", phase=EVAL) == 2 * 4 * 8 * 8
    assert counted.by("phase", op="exp") == {EVAL: 1}


def test_a_frozen_part_of_a_model_is_forward_all_the_same() -> None:
    """The caller of a frozen part records gradients."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(8, 8)
            self.head = nn.Linear(8, 8)

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.backbone(y)
            return self.head(y)

    model = Frozen()
    with Counted(model) as counted:
        model(x())

    assert counted.by("phase", op="addmm") == {FORWARD: 2}


def test_a_closure_runs_forward_and_backward_inside_the_step() -> None:
    """Lightning and LBFGS do this."""
    model = Net()
    optimizer = sgd(model, momentum=0.9, foreach=True)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x()).square().mean()
        loss.backward()
        return loss

    with Counted(model) as counted:
        optimizer.step(closure)

    assert counted.by("phase", "flops") == {
        FORWARD: 2 * 2 * 4 * 8 * 16,
        BACKWARD: 3 * 2 * 4 * 8 * 16,
    }
    assert counted.by("phase", op="mean") == {FORWARD: 1}
    assert set(counted.by("phase", op="_foreach_add_")) == {OPTIMIZER}


def test_after_a_step_that_raised_the_next_forward_is_forward() -> None:
    """The hook that says that a step has ended is not called then."""
    model = nn.Linear(8, 8)
    optimizer = sgd(model)

    def closure() -> torch.Tensor:
        raise ValueError

    with Counted(model) as counted:
        with pytest.raises(ValueError, match=r"^$"):
            optimizer.step(closure)
        model(x()).sin().sum().backward()
        model.weight.exp()

    assert {op: counted.by("phase", op=op) for op in ("addmm", "sin", "exp")} == {
        op: {FORWARD: 1} for op in ("addmm", "sin", "exp")
    }


def test_several_models_are_named_by_their_number() -> None:
    """A GAN: two optimizers, one iteration."""
    generator = nn.Linear(8, 8)
    critic = nn.Linear(8, 1)
    first = sgd(generator)
    second = sgd(critic)
    with Counted(generator, critic) as counted:
        critic(generator(x()).detach()).mean().backward()
        second.step()
        critic(generator(x())).mean().backward()
        first.step()

    assert counted.by("module", op="addmm", phase=FORWARD) == {"0": 2, "1": 2}
    assert counted.by("module", op="mm", phase=BACKWARD) == {"0": 1, "1": 3}
    assert counted.sum(phase=OPTIMIZER) >= 2


def test_modules_that_are_not_watched_belong_to_the_one_around_them() -> None:
    """Added after the iteration began, or somebody else's."""
    model = nn.Sequential(nn.Linear(8, 8))
    other = nn.Linear(8, 8)
    with Counted(model) as counted:
        model.append(nn.Linear(8, 8))
        other(model(x()))

    assert counted.by("module", op="addmm") == {"0": 1, "": 2}


def test_all_ops_of_all_threads_are_counted() -> None:
    """Four threads train watched modules at once, and none of their ops is missed."""
    model = nn.ModuleList([nn.Sequential(*(nn.Linear(8, 8) for _ in range(40))) for _ in range(4)])
    start = threading.Barrier(4)

    def work(part: nn.Module) -> None:
        start.wait(60)
        for _ in range(5):
            part(x())

    with Counted(model) as counted:
        threads = [threading.Thread(target=work, args=(part,)) for part in model]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert counted.sensor.guard.missed == 0
    assert counted.by("module", op="addmm") == {f"{i}.{j}": 5 for i in range(4) for j in range(40)}


def test_a_thread_of_the_user_has_no_mode_left_when_its_module_has_run() -> None:
    """The mode is gone while the iteration still goes on."""
    model = nn.Linear(8, 8)
    depths = []

    def work() -> None:
        model(x())
        depths.append(torch._C._len_torch_dispatch_stack())

    with Counted(model):
        model(x())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        depths.append(torch._C._len_torch_dispatch_stack())
    depths.append(torch._C._len_torch_dispatch_stack())

    assert depths == [0, 1, 0]


def _traced(model: nn.Module) -> Any:
    return torch.jit.trace(model, x(), check_trace=False)(x())


def _anomaly(model: nn.Module) -> Any:
    with torch.autograd.detect_anomaly(check_nan=False):
        out = model(x())
        out.sum().backward()
    return out


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("call", [_traced, _anomaly])
def test_what_else_people_do_with_a_model_gives_the_same(call: Callable[[nn.Module], Any]) -> None:
    """Tracing and anomaly detection in a counted iteration."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    state = torch.get_rng_state()
    bare = call(model)
    torch.set_rng_state(state)
    with Counted(model) as counted:
        watched = call(model)

    assert torch.equal(bare, watched)
    assert counted.sensor.guard.errors == 0
    assert torch._C._len_torch_dispatch_stack() == 0


def _product(y: torch.Tensor) -> torch.Tensor:
    return y.prod()


def _spectral_norm(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.linalg.svdvals(y)


@pytest.mark.parametrize(
    ("call", "altered", "uncounted"), [(_product, "prod", ""), (_spectral_norm, "", "svdvals")]
)
def test_ops_that_pytorch_computes_otherwise_under_a_mode_end_the_census(
    call: Callable[[torch.Tensor], torch.Tensor], altered: str, uncounted: str
) -> None:
    """For good, and before backward: a product in a model has the gradient it always has."""

    class Calling(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return call(y)

    def gradient() -> torch.Tensor:
        y = torch.linspace(0.3, 1.7, 15).reshape(3, 5).requires_grad_()
        out = model(y)
        if not out.requires_grad:
            return torch.zeros(())
        (found,) = torch.autograd.grad(out.sum(), y)
        return found

    model = Calling()
    bare = gradient()
    with Counted(model) as counted:
        watched = gradient()
    assert torch.equal(bare, watched)
    assert counted.census is None
    assert (counted.sensor.altered, counted.sensor.uncounted) == (altered, uncounted)
    assert not counted.sensor.begin()


def test_a_hook_that_goes_meanwhile_does_not_replace_the_users_exception() -> None:
    """Where a module has raised, PyTorch walks over the hooks after modules in place."""

    class Raising(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            msg = f"the user's own, after {y.prod()}"
            raise ValueError(msg)

    model = Raising()
    other = nn.Linear(8, 8)
    with Counted(other), Counted(model):
        handle = torch_module.register_module_forward_hook(lambda *_: None, always_call=True)
        with pytest.raises(ValueError, match="the user's own"):
            model(x())
        handle.remove()

    assert not torch_module._global_forward_hooks


def test_with_an_optimizer_inside_backward_nothing_piles_up() -> None:
    """Iterations end inside of backward there, where autograd puts every mode back."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizers = {p: sgd_of(p) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    counted = Counted(model)
    step = 0

    def next_iteration(parameter: torch.Tensor) -> None:
        nonlocal step
        if parameter is model[0].weight:
            counted.sensor.end(step, 0.5)
            counted.sensor.begin()
            step += 1

    model[0].weight.register_post_accumulate_grad_hook(next_iteration)
    depths = set()
    with counted:
        for _ in range(60):
            model(x()).square().mean().backward()
            torch.ones(2)
            depths.add(torch._C._len_torch_dispatch_stack())

    assert step == 60
    assert depths == {0}
    assert len(torch_module._global_forward_pre_hooks) == 0
    assert torch._C._len_torch_dispatch_stack() == 0


def sgd_of(parameter: torch.Tensor) -> torch.optim.SGD:
    return torch.optim.SGD([parameter], lr=0.1)


def test_an_iteration_without_an_op_is_given_up_at_some_point() -> None:
    """An evaluation that nothing ends costs nothing in the long run."""
    model = nn.Linear(8, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census_module, "MAX_CALLS", 10)
        with Counted(model):
            with torch.no_grad():
                for _ in range(12):
                    model(x())
            given_up = not torch_module._global_forward_pre_hooks

    assert given_up


def test_an_iteration_with_very_many_ops_is_cut() -> None:
    """An evaluation of a whole epoch that no update of the scaler ends."""
    model = nn.Linear(8, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census_module, "MAX_OPS", 10)
        with Counted(model) as counted:
            for _ in range(100):
                model(x())

    assert counted.sum() == 10


def test_a_backward_through_very_many_nodes_is_cut() -> None:
    """Each for itself: those of 8 ops are whole, of a longer one 10 are seen, and none of what follows it."""

    def loss(ops: int) -> torch.Tensor:
        y = model(x()).sum()
        for _ in range(ops):
            y = y.exp()
        return y

    model = nn.Linear(8, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census_module, "MAX_NODES_SEEN", 10)
        with Counted(model) as counted:
            for ops in (5, 5, 20, 5):
                loss(ops).backward()

    assert counted.sum(phase=Phase.BACKWARD) == 8 + 8 + 10


def test_removing_in_the_middle_of_a_forward_takes_everything_off() -> None:
    """A monitor may be closed from anywhere."""
    hooks = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)

    class Closing(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            counted.bench.remove()
            return y.exp()

    model = nn.Sequential(nn.Linear(8, 8), Closing(), nn.Linear(8, 8))
    counted = Counted(model)
    with counted:
        model(x()).sum().backward()
        depth = torch._C._len_torch_dispatch_stack()

    assert (depth, counted.census) == (0, None)
    assert hooks == (
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
    )


def test_no_tensor_is_kept_alive() -> None:
    """Tensors go while the iteration goes on, and after it."""
    model = nn.Linear(8, 8)
    with Counted(model) as counted:
        out = model(x())
        seen = weakref.ref(out)
        (out * 2).sum().backward()
        del out
        gc.collect()
        during = seen()

    assert during is None
    assert counted.census is not None
    assert not [o for o in gc.get_referents(counted.sensor._counts) if isinstance(o, torch.Tensor)]


def test_an_op_that_may_be_a_view_counts_where_it_has_copied() -> None:
    """In inference mode ``to`` and ``reshape`` arrive as they are."""

    class Inferring(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                values = x.detach()
                values.to(values.dtype).reshape(-1)
                values.to(torch.float16)
                values.t().reshape(-1)
            return super().forward(x)

    with Counted(model := Inferring(8, 8)) as counted:
        model(torch.randn(4, 8))

    assert counted.by("op", op="to") | counted.by("op", op="_to_copy") in (
        {"to": 1},
        {"_to_copy": 1},
    )
    assert counted.sum(kind=OpKind.COPY) == 1
