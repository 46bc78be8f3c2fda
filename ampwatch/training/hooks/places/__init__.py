"""Every place where ampwatch replaces or hooks something of torch while it watches: one list.

A place is put on when a sensor wants one of its events, and taken off with the last of them.
``docs/what-is-patched.md`` is printed from this list (`training/patched.py`).
"""

from __future__ import annotations

from ampwatch.training.hooks.events import (
    AlteredCalled,
    AutocastEntering,
    AutocastLeft,
    BackwardBegan,
    BackwardEnded,
    BatchArrived,
    BatchAwaited,
    ClipBegan,
    ClipEnded,
    ClippingByNorm,
    ClippingByValue,
    CollectiveBegan,
    CollectiveWaited,
    CommunicationArrived,
    CommunicationAwaited,
    CommunicationAwaitedWithin,
    CompileCalled,
    CompiledEntering,
    EndCalled,
    EndReturned,
    ForwardBegan,
    ForwardEnded,
    ForwardReturned,
    GraphCaptured,
    OptimizerLoaded,
    OptimizerStepped,
    OptimizerStepping,
    RootCalled,
    RootReturned,
    SavedTensorsHooked,
    Scaled,
    ScaleRead,
    ScalerLoaded,
    StepBegan,
    StepEnded,
    TensorsSwapping,
    Unscaled,
    Unscaling,
    Updated,
    Updating,
    Zeroed,
)
from ampwatch.training.hooks.place import (
    FUNCTION,
    HOOK,
    REPLACED,
    Handle,
    Place,
    after_any_forward_first,
    before_any_forward,
    before_any_step,
    before_node,
)
from ampwatch.training.hooks.places.backward import place_backward
from ampwatch.training.hooks.places.clipping import place_clip, place_clip_times
from ampwatch.training.hooks.places.communication import place_collectives, place_communication
from ampwatch.training.hooks.places.data import place_batches
from ampwatch.training.hooks.places.forward import (
    place_after_forward,
    place_autocast,
    place_before_forward,
    place_end_of_forward,
    place_roots,
    place_saved_tensors,
    place_swap,
)
from ampwatch.training.hooks.places.functions import ALTERED_FUNCTIONS, ALTERED_NORMS, place_altered
from ampwatch.training.hooks.places.graphs import (
    place_capture,
    place_compile,
    place_graph,
    place_keep_from_compiler,
)
from ampwatch.training.hooks.places.optimizer import (
    place_load_optimizer,
    place_optimizer_step,
    place_zero_grad,
)
from ampwatch.training.hooks.places.scaler import (
    GradScaler,
    place_ends,
    place_get_scale,
    place_load_scaler,
    place_scale,
    place_step,
    place_unscale,
    place_update,
)

__all__ = [
    "ALTERED_FUNCTIONS",
    "ALTERED_NORMS",
    "FUNCTION",
    "HOOK",
    "PLACES",
    "REPLACED",
    "GradScaler",
    "Handle",
    "Place",
    "after_any_forward_first",
    "before_any_forward",
    "before_any_step",
    "before_node",
]

COUNTED = "in iterations whose ops are observed one by one"

PLACES: tuple[Place, ...] = (
    Place("torch.amp.GradScaler.scale", REPLACED, (Scaled,), place_scale, of_scaler=True),
    Place(
        "torch.amp.GradScaler.get_scale", REPLACED, (ScaleRead,), place_get_scale, of_scaler=True
    ),
    Place(
        "torch.amp.GradScaler.unscale_",
        REPLACED,
        (Unscaling, Unscaled),
        place_unscale,
        of_scaler=True,
    ),
    Place(
        "torch.amp.GradScaler.step", REPLACED, (StepBegan, StepEnded), place_step, of_scaler=True
    ),
    Place(
        "torch.amp.GradScaler.update", REPLACED, (Updating, Updated), place_update, of_scaler=True
    ),
    Place(
        "torch.amp.GradScaler.load_state_dict",
        REPLACED,
        (ScalerLoaded,),
        place_load_scaler,
        of_scaler=True,
    ),
    Place(
        "the methods that an ampwatch.LossScaler, or the row of a framework, says end an iteration",
        REPLACED,
        (EndCalled, EndReturned),
        place_ends,
        when="with a scaler that is not torch's",
    ),
    Place(
        "torch.optim.Optimizer.load_state_dict", REPLACED, (OptimizerLoaded,), place_load_optimizer
    ),
    Place(
        "torch.optim.optimizer.register_optimizer_step_pre_hook, ..._post_hook",
        HOOK,
        (OptimizerStepping, OptimizerStepped),
        place_optimizer_step,
    ),
    Place(
        "torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad",
        REPLACED,
        (Zeroed,),
        place_zero_grad,
    ),
    # Before the next one, which calls sensors: what these take is no clipping.
    Place(
        "torch.nn.utils.clip_grad._get_total_norm, ..._clip_grads_with_norm_, ...clip_grad_value_;"
        " torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_,"
        " torch.nn.utils.clip_grad_value_",
        FUNCTION,
        (ClipBegan, ClipEnded),
        place_clip_times,
    ),
    Place(
        "torch.nn.utils.clip_grad._clip_grads_with_norm_, ..._group_tensors_by_device_and_dtype,"
        " torch.nn.utils.clip_grads_with_norm_",
        FUNCTION,
        (ClippingByNorm, ClippingByValue),
        place_clip,
    ),
    Place("torch.autograd.backward", FUNCTION, (BackwardBegan, BackwardEnded), place_backward),
    Place(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        REPLACED,
        (BatchAwaited, BatchArrived),
        place_batches,
    ),
    Place(
        "torch.distributed.Work.wait",
        REPLACED,
        (CommunicationAwaited, CommunicationAwaitedWithin, CommunicationArrived),
        place_communication,
        when="in trainings of several ranks",
    ),
    Place("torch.utils.swap_tensors", FUNCTION, (TensorsSwapping,), place_swap),
    # For no sensor, and so at every level: what is captured goes by all of them unheard.
    Place(
        "capture_begin and capture_end of torch.cuda.CUDAGraph, torch.xpu.XPUGraph,"
        " torch.accelerator.Graph and the like of another backend",
        REPLACED,
        (),
        place_graph,
    ),
    Place(
        "torch.autocast.__enter__, torch.autocast.__exit__",
        REPLACED,
        (AutocastEntering, AutocastLeft),
        place_autocast,
    ),
    Place(
        "__init__ of the backends of torch.compile; where it was called,"
        " torch.nn.modules.module._has_any_global_hook and"
        " torch._dynamo.eval_frame._callback_from_stance",
        REPLACED,
        (CompileCalled, CompiledEntering),
        place_compile,
    ),
    Place("__call__ of the backends of torch.compile", REPLACED, (GraphCaptured,), place_capture),
    # For no sensor: what is replaced here is not to be compiled.
    Place("__init__ of the backends of torch.compile", REPLACED, (), place_keep_from_compiler),
    Place(
        "torch.nn.modules.module.register_module_forward_pre_hook",
        HOOK,
        (ForwardBegan,),
        place_before_forward,
        when="in iterations whose inputs or ops are observed",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook",
        HOOK,
        (ForwardReturned,),
        place_after_forward,
        when="in iterations whose outputs are measured",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook(always_call=True)",
        HOOK,
        (ForwardEnded,),
        place_end_of_forward,
        when="in iterations whose ops are observed",
    ),
    Place(
        "torch.autograd.graph.saved_tensors_hooks.__enter__",
        REPLACED,
        (SavedTensorsHooked,),
        place_saved_tensors,
        when="at standard and deep",
    ),
    Place(
        "__call__ of the classes of the watched models; what model.compile() has compiled;"
        " torch._dynamo.eval_frame.OptimizedModule.__call__",
        REPLACED,
        (RootCalled, RootReturned),
        place_roots,
        when="always, where a model is watched",
    ),
    Place(
        "all methods of torch.distributed.ProcessGroup that return a handle (Work), and"
        " _start_coalescing; torch.distributed.Work.wait",
        REPLACED,
        (CollectiveBegan, CollectiveWaited),
        place_collectives,
        when="at standard and deep",
    ),
    Place(
        "torch.linalg.svdvals, eigvalsh, pinv, cond, matrix_rank, norm, matrix_norm;"
        " torch.pinverse; torch.autograd.forward_ad.enter_dual_level",
        FUNCTION,
        (AlteredCalled,),
        place_altered,
        when=COUNTED,
    ),
)
"""The places, in the order in which they are put on."""
