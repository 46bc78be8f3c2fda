"""Every private name of torch that ampwatch uses, and what happens in a torch that lacks it.

Public names are used wherever there are any. What there is no public name for stands here and nowhere
else in the package, so that whoever tries a new torch has one file to read. A name that ampwatch can do
without has a replacement, and what is lost is noted beside it. One that it cannot do without makes the
import fail with a sentence, which ``monitor()`` raises before anything is attached.

``python -m ampwatch.training.private`` prints which names this torch has, and in which versions each was
seen. Names of attributes are looked up on the object each time, in C where that is a step's business.
"""

from __future__ import annotations

import sys
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _python_dispatch

from ampwatch.errors import AttachError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUPPORTED = "2.6"
"""The oldest torch that has all names without which nothing works."""

REFUSED = "monitor() refuses this torch."

SWITCHED_OFF = "The sensor that asks for it is switched off, with a line in the log."


class PrivateName(NamedTuple):
    """A private name of torch.

    Attributes:
        name: The name, with its module or class.
        use: What it is used for.
        without: What happens where it is missing.
    """

    name: str
    use: str
    without: str


NAMES: list[PrivateName] = []
"""All of them, in the order of this file."""

ABSENT: dict[str, frozenset[str]] = {
    "2.6.0": frozenset(
        {
            "torch.autograd._is_kineto_stopped",
            "torch.nn.modules.module._has_any_global_hook",
            "torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals",
            "torch._functorch.config.backward_pass_autocast",
        }
    ),
    "2.13.0": frozenset(),
    "2.14.1": frozenset(),
}
"""By version of torch that was tried: the names that it does not have. It has all others."""

_NEEDED = object()


def _find(name: str, use: str, without: str = REFUSED, otherwise: Any = _NEEDED) -> Any:
    """Return what has a private name, or what takes its place.

    Raises:
        AttachError: If it is missing and nothing takes its place.
    """
    NAMES.append(PrivateName(f"torch.{name}", use, without))
    try:
        return attrgetter(name)(torch)
    except AttributeError:
        if otherwise is _NEEDED:
            msg = (
                f"expected torch {SUPPORTED} or newer with the private name torch.{name}, got torch"
                f" {torch.__version__} without it; upgrade ampwatch, or take a torch that it supports"
            )
            raise AttachError(msg) from None
        return otherwise


def _on_instances(name: str, use: str, without: str = SWITCHED_OFF) -> str:
    """Note a private attribute of objects; return its last part."""
    NAMES.append(PrivateName(f"torch.{name}", use, without))
    return name.rpartition(".")[2]


# Norms of gradients, on a device and where there is no compiler.

foreach_norm: Callable[..., Any] = _find(
    "_foreach_norm", "The norms of many tensors in few launches, as clip_grad_norm_ takes them."
)

foreach_copy: Callable[..., Any] = _find(
    "_foreach_copy_", "Puts them where they are read, in few launches."
)

# Autograd.

graph_task: Callable[[], int] = _find(
    "_C._current_graph_task_id",
    "Shows whether the calling thread is in a backward pass: -1 if it is not.",
)

current_node: Callable[[], Any] = _find(
    "_C._current_autograd_node", "The node of the graph that runs in backward, or None."
)

MAX_NODES_SEEN = 24_000
"""Nodes of one graph that are asked for in a backward. PyTorch 2.13 frees nodes that Python has seen one
within the other: 38 000 in a row overflow a stack of 8 MiB, which ends the process."""

next_sequence_number: Callable[[], int] = _find(
    "_C._autograd._get_sequence_nr",
    "The number that the next node of a graph gets: which module's forward made a node.",
)

sequence_number: Callable[[Any], int] = methodcaller(
    _on_instances("autograd.graph.Node._sequence_nr", "The number of a node.")
)

ENGINE = _find(
    "autograd.graph._engine_run_backward",
    "By whose frame it is known that Python was called from a backward pass.",
).__code__

metadata_of_node: Callable[[Any], Any] = attrgetter(
    _on_instances(
        "autograd.graph.Node._input_metadata",
        "Dtype and device of the gradient that a node takes, which are those of what it made in forward.",
    )
)

saved_other: Callable[[Any], Any] = attrgetter(
    _on_instances(
        "autograd.graph.Node._saved_other",
        "The constant factor at the root of a backward, which is the scale of the loss.",
        "Losses that are scaled by hand are not recognised.",
    )
)

saved_self: Callable[[Any], Any] = attrgetter(
    _on_instances(
        "autograd.graph.Node._saved_self",
        "That factor, where the loss is the second one.",
        "Losses that are scaled by hand are not recognised.",
    )
)

saved_alpha: Callable[[Any], Any] = attrgetter(
    _on_instances(
        "autograd.graph.AddBackward0._saved_alpha",
        "The factor of what torch.add adds, in a search for gradients of a scaled loss.",
    )
)

saved_exponent: Callable[[Any], Any] = attrgetter(
    _on_instances(
        "autograd.graph.PowBackward0._saved_exponent", "The exponent of a power, likewise."
    )
)

RUNS_BACKWARD = _on_instances(
    "autograd._engine_run_backward",
    "Is called by torch.autograd.grad, by whatever name that was imported.",
    "Penalties of gradients that are multiplied by the scale are not reported.",
)

tracing_state: Callable[[], Any] = _find(
    "_C._get_tracing_state",
    "Shows whether torch.jit.trace writes down what is called: then not None.",
)

# Tensors.

version_of: Callable[[Any], int] = attrgetter(
    _on_instances(
        "Tensor._version", "How often a tensor was written to; documented in notes/autograd."
    )
)

tensor_hooks: Callable[[Any], dict[int, Any] | None] = attrgetter(
    _on_instances(
        "Tensor._backward_hooks", "Shows whether the program may change a gradient as it comes."
    )
)

accumulate_hooks: Callable[[Any], dict[int, Any] | None] = attrgetter(
    _on_instances(
        "Tensor._post_accumulate_grad_hooks",
        "Shows whether the program may change a gradient once it has come.",
    )
)

is_zero_tensor: Callable[[Any], bool] = methodcaller(
    _on_instances("Tensor._is_zerotensor", "Whether a tensor has no memory, for it is all zero.")
)

sparse_values: Callable[[Any], torch.Tensor] = methodcaller(
    _on_instances(
        "Tensor._values", "The values of a sparse tensor; values() refuses what is not coalesced."
    )
)

_users_of: Callable[[int], int] = _find(
    "_C._storage_Use_Count",
    "Shows whether anybody but ampwatch holds the memory of what a model was called with.",
    "All of it counts as held by ampwatch alone, so that large inputs are not kept for replays.",
    lambda _key: 0,
)


def users_of(storage: Any) -> int:
    """Return how many tensors hold a storage, in Python or in a graph; 0 if that is not known."""
    # The wrapper that is asked holds it as well.
    return max(_users_of(storage_key(storage)) - 1, 0)


storage_key: Callable[[Any], int] = attrgetter(
    _on_instances(
        "UntypedStorage._cdata",
        "Identity of memory; torch.multiprocessing.reductions.StorageWeakRef compares it.",
    )
)

WEAK_REF = _on_instances(
    "UntypedStorage._weak_ref", "Refers weakly to memory, as torch.multiprocessing.reductions does."
)
free_weak_ref: Callable[[int], None] = _find(
    "UntypedStorage._free_weak_ref", "Ends such a reference."
)
is_expired: Callable[[int], bool] = _find(
    "UntypedStorage._expired", "Shows that there is nothing behind one any more."
)

is_functorch_wrapped: Callable[[Any], bool] = _find(
    "_C._functorch.is_functorch_wrapped_tensor",
    "Shows tensors within a transform of torch.func, whose memory is not to be read.",
)

unwrap: Callable[[Any], torch.Tensor] = _find(
    "_C._functorch.get_unwrapped", "The tensor that one within a transform stands for."
)

# Operators.

OpOverload: Any = _find("_ops.OpOverload", "The class of operators that a dispatch mode is given.")

OpOverloadPacket: Any = _find("_ops.OpOverloadPacket", "The class of torch.ops.aten.add.")

NAME_OF_OP = _on_instances(
    "_ops.OpOverload._opname", "Its name without the overload's.", "No op counts as altered."
)

schema_of: Callable[[Any], Any] = attrgetter(
    _on_instances("_ops.OpOverload._schema", "What an operator takes, returns and writes to.")
)

attention_in_float64: Callable[..., Any] | None = _find(
    "ops.aten._scaled_dot_product_attention_math",
    "Fused attention, of which some kernels are for halves alone, where an error budget wants it exact.",
    "Such a call is one that the budget has not followed.",
    otherwise=None,
)

has_kernel: Callable[[str, Any], bool] = _find(
    "_C._dispatch_has_kernel_for_dispatch_key",
    "Shows what autocast and autograd do with an operator.",
)

# Dispatch: an op is run under a mode of ampwatch as it would be without.

DispatchKey: Any = _find(
    "_C.DispatchKey", "Names the parts of autocast and autograd in the dispatcher."
)
DispatchKeySet: Any = _find("_C.DispatchKeySet", "Names several parts of the dispatcher.")

StateOfCaller: Any = _find(
    "_C._RestorePythonTLSSnapshot", "Brings back the dispatcher's state in which an op was called."
)

excluded_keys: Callable[[], Any] = _find(
    "_C._dispatch_tls_local_exclude_set", "Shows whether autocast is excluded there."
)

included_keys: Callable[[], Any] = _find(
    "_C._dispatch_tls_local_include_set", "Shows whether autocast is included there."
)

ForcedKeys: Any = _find("_C._ForceDispatchKeyGuard", "Runs an op in another state.")

num_function_modes: Callable[[], int] = _find(
    "_C._len_torch_function_stack", "Counts the function modes of the user."
)

num_dispatch_modes: Callable[[], int] = _find(
    "_C._len_torch_dispatch_stack", "Counts the dispatch modes that are on."
)

_dispatch_mode: Callable[[int], Any] = _find("_C._get_dispatch_stack_at", "The mode at a place.")


def dispatch_modes() -> list[Any]:
    """Return the dispatch modes that are on in the calling thread, outermost first."""
    return [_dispatch_mode(index) for index in range(num_dispatch_modes())]


_find(
    "utils._python_dispatch.TorchDispatchMode",
    "The class of modes that see each op; it is documented, and its module is private.",
)
TorchDispatchMode = _python_dispatch.TorchDispatchMode
push_mode: Callable[[Any], None] = _find(
    "utils._python_dispatch._push_mode", "Puts a mode on the stack for more than a block."
)
pop_mode: Callable[[], Any] = _find("utils._python_dispatch._pop_mode", "Takes the innermost off.")

MODE_KEY = _on_instances(
    "utils._python_dispatch.TorchDispatchMode._mode_key",
    "Shows PyTorch's own modes, which trace, from those of users.",
    "Ops are also observed while PyTorch traces them.",
)

NoFunctionModes: Any = _find(
    "_C.DisableTorchFunction", "Keeps function modes of the user from what ampwatch computes."
)

NoFunctionSubclass: Any = _find(
    "_C.DisableTorchFunctionSubclass",
    "Keeps methods of tensor subclasses from what ampwatch computes; documented for that use.",
)

privateuse1_name: Callable[[], str] = _find(
    "_C._get_privateuse1_backend_name", "Name of an accelerator from outside of PyTorch."
)

# Modules and autocast.

MODULE_CALLS = (
    _find("nn.Module._call_impl", "By its frames the running modules are known.").__code__,
    _find("nn.Module._wrapped_call_impl", "The frame around that one.").__code__,
)

ConvNd: Any = _find("nn.modules.conv._ConvNd", "The common class of convolutions.")

is_enabled_region: Callable[[Any], bool] = attrgetter(
    _on_instances("autocast._enabled", "Whether a region turns autocast on.")
)


def _is_any_autocast_enabled() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


is_in_autocast: Callable[[], bool] = _find(
    "_C._is_any_autocast_enabled",
    "Shows whether autocast is on, for any type of device.",
    "It is asked for the CPU and for CUDA only.",
    _is_any_autocast_enabled,
)

# The state of a GradScaler. ``get_scale()`` and ``state_dict()`` are public and wait for the device.

_OF_SCALER = "Read without waiting for the device."

SCALER_STATE = tuple(
    _on_instances(f"amp.GradScaler.{name}", _OF_SCALER, "A scaler without it is refused at set-up.")
    for name in (
        "_scale",
        "_growth_tracker",
        "_per_optimizer_states",
        "_growth_factor",
        "_backoff_factor",
        "_growth_interval",
    )
)

scale_tensor: Callable[[Any], torch.Tensor | None] = attrgetter("_scale")
growth_tracker: Callable[[Any], torch.Tensor | None] = attrgetter("_growth_tracker")
states_of_optimizers: Callable[[Any], dict[int, dict[str, Any]]] = attrgetter(
    "_per_optimizer_states"
)
growth_settings: Callable[[Any], tuple[float, float, int]] = attrgetter(
    "_growth_factor", "_backoff_factor", "_growth_interval"
)
initial_scale: Callable[[Any], float] = attrgetter(
    _on_instances("amp.GradScaler._init_scale", "The scale that a scaler begins with.")
)
initial_tracker: Callable[[Any], int] = attrgetter(
    _on_instances(
        "amp.GradScaler._init_growth_tracker", "Shows a scaler that was loaded from a new one."
    )
)
device_of_scaler: Callable[[Any], str] = attrgetter(
    _on_instances("amp.GradScaler._device", "The type of device that a scaler is for.")
)
IS_ENABLED = _on_instances(
    "amp.GradScaler._enabled", "What step() reads.", "A scaler counts as enabled while it steps."
)
DECIDES_ON_DEVICE = _on_instances(
    "optim.Optimizer._step_supports_amp_scaling",
    "Set by fused optimizers, which are called in skipped steps as well.",
    "Every optimizer counts as one that is not called.",
)

# Functions that are looked up by public ones, and so are seen wherever those were imported to.

CLIP = _on_instances(
    "nn.utils.clip_grad._clip_grads_with_norm_",
    "Clipping by norm.",
    "clip_grad_norm_ itself is replaced, and not seen where it was imported by name before.",
)
CLIP_NORM = _on_instances(
    "nn.utils.clip_grad._get_total_norm",
    "How long clip_grad_norm_ takes for the norm.",
    "The time of the norm counts with the rest of a step.",
)
CLIP_BY_VALUE = _on_instances(
    "nn.utils.clip_grad._group_tensors_by_device_and_dtype",
    "Clipping by value.",
    "It is not seen.",
)
LOADER_ITERATOR: Any = _find(
    "utils.data.dataloader._BaseDataLoaderIter",
    "How long the program waits for batches of a DataLoader.",
    "Waiting for data counts with the rest of a step.",
    otherwise=None,
)
LOADER_WORKERS = _on_instances(
    "utils.data.dataloader._BaseDataLoaderIter._num_workers",
    "How many workers a DataLoader has.",
    "How many more would do is not documented.",
)
ACTIVE_REPLICA = _on_instances(
    "nn.parallel.DistributedDataParallel._active_ddp_module",
    "Whether DistributedDataParallel calls the model, and so sums gradients within backward.",
    "Its backward counts as one without reduction.",
)
FORWARD_HOOKS = _on_instances(
    "nn.modules.module._global_forward_hooks",
    "Puts a hook ahead of the others.",
    "A planted fault is placed behind the hooks of the user.",
)

find_builtin: Callable[[Any], Any] = _find(
    "jit._builtins._find_builtin",
    "Looks a function up in the table by which torch.jit.script finds operators.",
)
register_builtin: Callable[[Any, Any], None] = _find(
    "jit._builtins._register_builtin", "Enters a function into it."
)
builtin_table: Callable[[], dict[int, Any]] = _find(
    "jit._builtins._get_builtin_table", "Takes a function out."
)

# torch.distributed.

LOCAL_TENSOR = _on_instances(
    "distributed.tensor.DTensor._local_tensor",
    "The local shard; to_local() is a node of the graph.",
    "Its values are not measured.",
)
ASYNC_RESULT = _on_instances(
    "distributed._functional_collectives.AsyncCollectiveTensor.elem",
    "The memory that the result of a collective comes to lie in; to ask the tensor waits for it.",
    "Its values are not measured.",
)
HAS_COME = _on_instances(
    "distributed._functional_collectives.AsyncCollectiveTensor.completed",
    "Shows whether it has been waited for.",
    "The handle of the collective shows it.",
)
FLAT_NAMES = _on_instances(
    "distributed.fsdp.FlatParameter._fqns",
    "Names of the parameters that FullyShardedDataParallel has put into one.",
    "Findings name the flat parameter.",
)
FLAT_SHARDS = _on_instances(
    "distributed.fsdp.FlatParameter._shard_param_infos",
    "Which elements of which parameter this process has.",
    "Flat parameters are measured as a whole.",
)
FLAT_SIZE = _on_instances(
    "distributed.fsdp.FlatParameter._sharded_size",
    "Shows a shard from the parameter while it is gathered.",
    "Flat parameters are measured as a whole.",
)
IS_FLATTENED = "_fsdp_flattened"
"""The value of the constant below, as its module is loaded by whoever uses it alone."""
_on_instances(
    "distributed.fsdp._common_utils.FSDP_FLATTENED",
    "Shows flat parameters, and the parameters of the model that are views of them, from others.",
    "Shards that happen to have one shape are compared, and were never the same.",
)
BEGINS_GROUP = _on_instances(
    "distributed.ProcessGroup._start_coalescing",
    "Several collectives with one handle.",
    "Each counts as arrived.",
)
ENDS_GROUP = _on_instances(
    "distributed.ProcessGroup._end_coalescing",
    "The handle of several collectives.",
    "Each counts as arrived.",
)

# Profiling.

prepare_trace: Callable[[Any], None] = methodcaller(
    _on_instances(
        "autograd.profiler.profile._prepare_trace", "Starts a profiler as torch.profiler does."
    )
)
start_trace: Callable[[Any], None] = methodcaller(
    _on_instances("autograd.profiler.profile._start_trace", "Starts its recording.")
)
DeviceType: Any = _find("_C._autograd.DeviceType", "Where an event of the profiler took place.")

is_kineto_stopped: Callable[[], bool] = _find(
    "autograd._is_kineto_stopped",
    "Shows whether the buffers of a device were full before the end of a recording.",
    "A window that is too long lacks kernels, unnoticed.",
    bool,
)
_is_profiled: Callable[[], bool] = _find(
    "_C._autograd._profiler_enabled", "Shows whether a profiler is on in the calling thread."
)
_on_instances("autograd.profiler._is_profiler_enabled", "Shows whether one is on in any thread.")


def is_profiled() -> bool:
    """Whether somebody profiles: in any thread, or by any means in this one."""
    return bool(torch.autograd.profiler._is_profiler_enabled or _is_profiled())  # noqa: SLF001


IS_COMPILING = _on_instances(
    "compiler._is_compiling_flag",
    "What torch.compiler.is_compiling() returns in code that runs.",
    "That is called.",
)

# The compiler. Importing torch._dynamo takes a second, and whoever compiles has imported it.

CACHED_BACKENDS = _on_instances(
    "_dynamo.eval_frame.cached_backends",
    "Shows whether torch.compile was called.",
    "It counts as called.",
)
SKIP_CODE = _on_instances(
    "_dynamo.eval_frame.skip_code",
    "Has functions of ampwatch never be compiled.",
    "They may be, at a graph break.",
)
ENTERS_COMPILED = _on_instances(
    "_dynamo.eval_frame._callback_from_stance",
    "Is called when compiled code is entered, with what would compile.",
    "Compiling is expected from the first call of torch.compile on.",
)
ASKS_FOR_HOOKS = _on_instances(
    "nn.modules.module._has_any_global_hook",
    "Is called before a compiled module is entered, to warn of hooks.",
    "Compiling is expected from the first call of torch.compile on.",
)
STANCE = _on_instances(
    "_dynamo.eval_frame._stance",
    "Shows whether the user has set another stance meanwhile.",
    "The stance of before is not brought back.",
)
OPTIMIZED_MODULE = _on_instances(
    "_dynamo.eval_frame.OptimizedModule",
    "The class of what torch.compile(module) returns.",
    "Its names keep their prefix.",
)
ORIGINAL_MODULE = _on_instances(
    "_dynamo.eval_frame.OptimizedModule._orig_mod",
    "What it was made of; a name that its state_dict shows.",
    "Its calls are not seen.",
)
TRACED_AS = _on_instances(
    "_dynamo.trace_rules.check",
    "Shows whether the compiler traces a function that another one stands before, or breaks its"
    " graph there.",
    "A step that is compiled as a whole has more graph breaks, and is not seen.",
)
NOT_TRACED = _on_instances(
    "compiler.disable._torchdynamo_disable",
    "Has a graph break at a function, as torch.compiler.disable does.",
    "A step that is compiled as a whole has more graph breaks, and is not seen.",
)


def eval_frame() -> Any:
    """Return ``torch._dynamo.eval_frame``, or ``None`` before it is loaded."""
    return sys.modules.get("torch._dynamo.eval_frame")


set_eval_frame: Callable[[Any], Any] = _find(
    "_C._dynamo.eval_frame.set_eval_frame", "Sets what compiles what the calling thread calls."
)

SEES_COMPILED: bool = (
    _find(
        "_C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals",
        "Its presence says that code is compiled as ever under a mode that asks to be ignored.",
        "Ops are not followed once torch.compile was called.",
        None,
    )
    is not None
)
"""Whether this PyTorch compiles and runs code as ever while a mode is on that asks to be ignored.

From 2.10 on. Before, what ran for the first time under a dispatch mode was not compiled, or was
compiled again at each call (pytorch/pytorch#164992)."""

GUARDS_CLASSES = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 15)
"""Whether code is compiled again when a class that it calls gets a ``__call__`` of its own.

Seen in torch 2.15 ("Dynamo specialized the compiled code on this key being absent"), not in 2.13
and 2.14.1.
"""

BACKENDS = tuple(
    _on_instances(name, "One object is made of it at each call of torch.compile.", "Not seen.")
    for name in ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
)

BACKWARD_AUTOCAST = _on_instances(
    "_functorch.config.backward_pass_autocast",
    "Says which autocast a compiled backward is made with.",
    "It counts as that of the forward.",
)


def missing() -> Iterator[PrivateName]:
    """Yield the names that this torch does not have.

    Cost: a second, as it imports the compiler.
    """
    import torch._dynamo.eval_frame  # noqa: PLC0415 - see above
    import torch._functorch.config  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    scaler = torch.amp.GradScaler("cpu")
    weight = torch.zeros(1, requires_grad=True)
    of_instances = {
        "torch.utils._python_dispatch.TorchDispatchMode": FakeTensorMode(),
        "torch.optim.Optimizer": torch.optim.Adam([weight], fused=True),
        "torch.amp.GradScaler": scaler,
        "torch.autograd.graph.Node": (weight * weight).grad_fn,
        "torch.autograd.graph.AddBackward0": (weight + weight).grad_fn,
        "torch.autograd.graph.PowBackward0": (weight**2).grad_fn,
        "torch.autocast": torch.autocast("cpu"),
        "torch.compiler.disable": torch.compiler.disable(_is_any_autocast_enabled),  # type: ignore[no-untyped-call]
        "torch._dynamo.eval_frame.OptimizedModule": torch.compile(
            torch.nn.Module(), backend="eager"
        ),
        "torch.nn.Module": torch.nn.Module(),
        "torch._ops.OpOverload": torch.ops.aten.add.Tensor,
        # A generator of its own: the one of the program stays as it is.
        "torch.utils.data.dataloader._BaseDataLoaderIter": iter(
            torch.utils.data.DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type]
        ),
    }
    for row in NAMES:
        owner, _, name = row.name.rpartition(".")
        thing = of_instances.get(owner)
        if thing is None:
            thing = torch if owner == "torch" else attrgetter(owner.removeprefix("torch."))(torch)
        # What is set when a class is used is only announced in it.
        if not (hasattr(thing, name) or name in getattr(thing, "__annotations__", ())):
            yield row


def page() -> str:
    """Return what this torch has and lacks, for a person."""
    absent = {row.name for row in missing()}
    lines = [f"torch {torch.__version__} has {len(NAMES) - len(absent)} of {len(NAMES)} names"]
    for name, use, without in NAMES:
        mark = "-" if name in absent else "+"
        seen = ", ".join(version for version, names in ABSENT.items() if name not in names)
        lines += [f"{mark} {name}", f"    {use} Without it: {without} Seen in {seen}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
