"""The dispatch mode: it tells of every op, changes nothing, and comes off whatever is above it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Self

from ampwatch.training.ops.mode import OpMode
from tests.workshop.alone import python


class Noted(OpMode):
    """A mode that keeps the names of what it is told of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        super().__init__(lambda func, *_: self.names.append(func._schema.name))


class Passing(TorchDispatchMode):
    """A mode of the user."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def depth() -> int:
    return torch._C._len_torch_dispatch_stack()


def test_it_tells_of_ops_from_when_it_is_put_on_until_it_is_taken_off() -> None:
    """Each op is reported once, though the mode is put on twice."""
    mode, x = Noted(), torch.ones(2)
    x.neg()
    mode.put_on()
    mode.put_on()
    x.exp()
    mode.take_off()
    mode.take_off()
    x.neg()

    assert mode.names == ["aten::exp"]
    assert depth() == 0


def test_modes_of_the_user_may_come_and_go_in_any_order() -> None:
    """Entered before it and left after it was put on, and the other way round."""
    mode, x = Noted(), torch.ones(2)
    before, after = Passing(), Passing()
    with before:
        mode.put_on()
        x.exp()
    x.log()
    with after:
        mode.take_off()
        x.neg()
    x.neg()

    assert mode.names == ["aten::exp", "aten::log"]
    assert (before.calls, after.calls) == (1, 1)
    assert depth() == 0


def test_it_is_not_put_on_while_pytorch_traces() -> None:
    """With fake tensors there is nothing to see."""
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 - takes a while

    mode = Noted()
    with FakeTensorMode():
        mode.put_on()
        torch.ones(2).exp()

    assert mode.names == []
    assert (depth(), mode.threads) == (0, set())


def test_the_user_may_begin_to_trace_while_it_is_on() -> None:
    """Tensors there are fake, and nothing is told of them."""
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 - takes a while

    mode = Noted()
    mode.put_on()
    with FakeTensorMode():
        product = torch.ones(3, 2) @ torch.ones(2, 4)
    torch.ones(2)
    mode.take_off()

    assert product.shape == (3, 4)
    assert mode.names == ["aten::ones"]


TENSOR_PARALLEL = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from ampwatch.training.ops.mode import OpMode

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
mesh = init_device_mesh("cpu", (1,))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters())
mode = OpMode(lambda *_: None)
mode.put_on()
for _ in range(2):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
exported = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
mode.take_off()
dist.destroy_process_group()
print("trained", torch._C._len_torch_dispatch_stack())
"""


@pytest.mark.nightly
def test_tensor_parallel_and_export_work_while_it_is_on() -> None:
    """In a fresh process: DTensor remembers how an op is sharded once that was worked out."""
    assert python("-c", TENSOR_PARALLEL).stdout.split() == ["trained", "0"]


class Wrapper(torch.Tensor):
    """A tensor made of another one, which doubles what it adds."""

    inner: torch.Tensor

    def __new__(cls, inner: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        out = func(*plain, **(kwargs or {}))
        return cls(out * 2 if func is torch.ops.aten.add.Tensor else out)


def test_what_a_tensor_subclass_does_is_let_through_unseen() -> None:
    """And it stays what it is."""
    mode = Noted()
    x = Wrapper(torch.ones(2))
    bare = (x + x).inner
    mode.put_on()
    watched = (x + x).inner
    mode.take_off()

    assert mode.names == []
    assert torch.equal(watched, bare)


def test_an_ignored_op_is_not_told_of() -> None:
    """From the beginning, or from when it was found to compute nothing."""
    names: list[str] = []
    mode = OpMode(lambda func, *_: names.append(func._schema.name), [torch.ops.aten.exp.default])
    mode.put_on()
    x = torch.ones(2)
    mode.ignore(torch.ops.aten.ones.default)
    torch.ones(2)
    x.exp()
    mode.take_off()

    assert names == ["aten::ones"]


def test_an_error_of_an_op_reaches_the_user() -> None:
    """Nothing is told of what did not happen."""
    mode = Noted()
    mode.put_on()
    try:
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    except RuntimeError as error:
        message = str(error)
    mode.take_off()

    assert "cannot be multiplied" in message
    assert mode.names == ["aten::ones", "aten::ones"]


def test_silenced_from_another_thread_it_leaves_with_the_next_op() -> None:
    """After it, and without a word about it."""
    mode = Noted()
    mode.put_on()
    thread = threading.Thread(target=mode.silence)
    thread.start()
    thread.join()
    torch.ones(2)

    assert (mode.names, depth()) == ([], 0)


def test_silenced_from_another_thread_it_leaves_where_it_is_with_the_next_module() -> None:
    """Only from within a thread can a mode be taken off; the hooks for it go as well."""
    mode, module = Noted(), nn.Identity()
    hooks = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)
    mode.put_on()
    thread = threading.Thread(target=mode.silence)
    thread.start()
    thread.join()
    still = depth()
    module(None)

    assert (still, depth()) == (1, 0)
    assert mode.names == []
    assert hooks == (
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
    )


def test_of_a_thread_that_has_ended_nothing_stays() -> None:
    """The stack went with the thread; the next module to run anywhere ends the wait for it."""
    mode = Noted()
    hooks = len(torch_module._global_forward_hooks)
    thread = threading.Thread(target=mode.put_on)
    thread.start()
    thread.join()
    mode.silence()
    nn.Identity()(torch.ones(2))

    assert len(torch_module._global_forward_hooks) == hooks


def test_taken_off_inside_backward_it_leaves_with_the_next_module() -> None:
    """Autograd puts it back when the node is done."""
    mode, module = Noted(), nn.Identity()
    hooks = len(torch_module._global_forward_pre_hooks)
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _grad: mode.silence())
    mode.put_on()
    x.exp().sum().backward()
    still = depth()
    module(None)

    assert (still, depth()) == (1, 0)
    assert (mode.threads, len(torch_module._global_forward_pre_hooks)) == (set(), hooks)


def test_taken_off_inside_an_op_it_leaves_when_that_is_done() -> None:
    """PyTorch puts it back after the op; it is not put on a second time meanwhile."""
    depths: list[int] = []

    def note(*_: Any) -> None:
        mode.put_on()
        depths.append(depth())
        mode.silence()

    mode = OpMode(note)
    mode.put_on()
    torch.ones(2)

    assert (depths, depth()) == ([0], 0)
    assert mode.threads == set()


def test_an_op_that_would_be_altered_is_the_last_and_nothing_is_on_after_it() -> None:
    """The mode is asked before the op runs, and tells of nothing from there on."""
    names: list[str] = []
    exp = torch.ops.aten.exp.default
    mode = OpMode(lambda func, *_: names.append(func._schema.name), (), lambda func, _: func is exp)
    x = torch.ones(2)
    mode.put_on()
    x.neg()
    x.exp()
    after = depth()
    x.log()

    assert names == ["aten::neg"]
    assert (after, mode.threads) == (0, set())


@torch.library.custom_op("ampwatch_tests::product", mutates_args=())
def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y).float()


CALLERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "custom op": lambda x: _product(x, x.T.contiguous()),
    "bilinear": lambda x: nn.functional.bilinear(x, x, x.reshape(2, 16, 16)),
    "sparse product": lambda x: torch.sparse.mm(torch.eye(32).to_sparse(), x),
    "pseudoinverse": torch.linalg.pinv,
    "distance": lambda x: torch.cdist(x, x),
    "product": lambda x: x @ x.T,
}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("call", CALLERS.values(), ids=list(CALLERS))
def test_autocast_applies_to_what_an_op_calls_as_it_does_without(
    call: Callable[[torch.Tensor], torch.Tensor], *, enabled: bool
) -> None:
    """Some ops are cast themselves; of others the products in their kernels are."""
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    mode = Noted()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        bare = call(x)
        mode.put_on()
        watched = call(x)
    mode.take_off()

    assert mode.names
    assert watched.dtype is bare.dtype
    assert torch.equal(watched, bare)


def test_below_a_mode_of_the_user_autocast_does_not_apply_as_without() -> None:
    """PyTorch excludes it for all that a mode calls."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    mode = Noted()
    with torch.autocast("cpu", dtype=torch.bfloat16), Passing():
        bare = _product(x, x)
        mode.put_on()
        watched = _product(x, x)
    mode.take_off()

    assert torch.equal(watched, bare)


def test_a_forked_child_loses_it_with_its_first_op() -> None:
    """A worker of a data loader has nothing to tell."""
    mode = Noted()
    mode.put_on()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.ones(2)
        os.write(writer, b"%d" % depth())
        os._exit(0)
    os.waitpid(pid, 0)
    mode.take_off()

    assert os.read(reader, 8) == b"0"
    os.close(reader)
    os.close(writer)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (torch.func.grad, lambda x: torch.linalg.svd(x)[1].sum()),
        (torch.func.hessian, lambda x: x.prod(0).sigmoid().sum()),
        (lambda f: torch.func.vmap(torch.func.grad(f)), lambda x: x.prod(0).sum()),
    ],
    ids=["grad", "hessian", "vmap"],
)
def test_it_does_not_leave_at_an_op_of_a_transform(transform: Any, function: Any) -> None:
    """The transform goes on as without a mode; the mode is silent at once, and gone when asked to."""
    noted: list[str] = []
    mode = OpMode(
        lambda func, *_: noted.append(func._opname),
        is_altered=lambda func, _args: func._opname in ("prod", "_linalg_svd"),
    )
    x = torch.linspace(0.5, 1.5, 9).reshape(3, 3)
    expected = transform(function)(x)

    mode.put_on()
    found = transform(function)(x)
    after = x + 1
    mode.silence()

    assert torch.equal(found, expected)
    assert torch.equal(after, torch.linspace(1.5, 2.5, 9).reshape(3, 3))
    assert not {"prod", "_linalg_svd"} & set(noted)
    assert depth() == 0
    assert not mode.threads


class Parted(Wrapper):
    """One that says what it is made of."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


class Refusing(Wrapper):
    """One whose own code fails when it is asked."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        raise KeyError(self)


def test_the_ops_on_the_parts_of_a_tensor_are_seen() -> None:
    """Those that its class calls, and not the one that it was asked for."""
    mode = Noted()
    x = Parted(torch.ones(2))
    bare = (x + x).inner
    mode.put_on()
    watched = (x + x).inner
    mode.take_off()

    assert mode.names == ["aten::add", "aten::mul"]
    assert torch.equal(watched, bare)
    assert (depth(), mode.closed) == (0, set())


def test_parts_that_hold_nothing_are_not_computed_with() -> None:
    """The class may work out shapes on them."""
    mode = Noted()
    x = Parted(torch.ones(2, device="meta"))
    mode.put_on()
    watched = x + x
    mode.take_off()

    assert (watched.shape, mode.names) == ((2,), [])


def test_a_class_whose_code_fails_when_it_is_asked_stays_closed() -> None:
    """Its op runs as without, and its name is kept."""
    mode = Noted()
    x = Refusing(torch.ones(2))
    mode.put_on()
    watched = (x + x).inner
    mode.take_off()

    assert (watched.tolist(), mode.names, mode.closed) == ([4.0, 4.0], [], {"Refusing"})


def test_a_mode_of_the_user_sees_of_such_a_tensor_what_it_saw() -> None:
    """The op on it, once; those on its parts come when that mode is at work."""
    x = Parted(torch.ones(2))
    calls = []
    for mode in (None, Noted()):
        with Passing() as of_user:
            if mode is not None:
                mode.put_on()
            (x + x).exp()
            if mode is not None:
                mode.take_off()
        calls.append(of_user.calls)

    assert calls == [2, 2]
