"""Every place where ampwatch replaces or hooks something of torch while it watches: one list.

A place is put on when a sensor wants one of its events, and taken off with the last of them.
``docs/what-is-patched.md`` is printed from this list (`tools/site/patched.py`).
"""

from __future__ import annotations

from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.place import FUNCTION, HOOK, REPLACED, Place
from ampwatch.training.hooks.places import (
    backward,
    communication,
    forward,
    functions,
    graphs,
    optimizer,
    scaler,
)

COUNTED = "in iterations whose ops are observed one by one"

PLACES: tuple[Place, ...] = (
    Place("torch.amp.GradScaler.scale", REPLACED, (on.Scaled,), scaler.place_scale, of_scaler=True),
    Place(
        "torch.amp.GradScaler.get_scale",
        REPLACED,
        (on.ScaleRead,),
        scaler.place_get_scale,
        of_scaler=True,
    ),
    Place(
        "torch.amp.GradScaler.unscale_",
        REPLACED,
        (on.Unscaling, on.Unscaled),
        scaler.place_unscale,
        of_scaler=True,
    ),
    Place(
        "torch.amp.GradScaler.step",
        REPLACED,
        (on.StepBegan, on.StepEnded),
        scaler.place_step,
        of_scaler=True,
    ),
    Place(
        "torch.amp.GradScaler.update",
        REPLACED,
        (on.Updating, on.Updated),
        scaler.place_update,
        of_scaler=True,
    ),
    Place(
        "torch.amp.GradScaler.load_state_dict",
        REPLACED,
        (on.ScalerLoaded,),
        scaler.place_load_scaler,
        of_scaler=True,
    ),
    Place(
        "the methods that an ampwatch.LossScaler, or the row of a framework, says end an iteration",
        REPLACED,
        (on.EndCalled, on.EndReturned),
        scaler.place_ends,
        when="with a scaler that is not torch's",
    ),
    Place(
        "torch.optim.Optimizer.load_state_dict",
        REPLACED,
        (on.OptimizerLoaded,),
        optimizer.place_load_optimizer,
    ),
    Place(
        "torch.optim.optimizer.register_optimizer_step_pre_hook, ..._post_hook",
        HOOK,
        (on.OptimizerStepping, on.OptimizerStepped),
        optimizer.place_optimizer_step,
    ),
    Place(
        "torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad",
        REPLACED,
        (on.Zeroed,),
        optimizer.place_zero_grad,
    ),
    # Before the next one, which calls sensors: what these take is no clipping.
    Place(
        "torch.nn.utils.clip_grad._get_total_norm, ..._clip_grads_with_norm_, ...clip_grad_value_;"
        " torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_,"
        " torch.nn.utils.clip_grad_value_",
        FUNCTION,
        (on.ClipBegan, on.ClipEnded),
        functions.place_clip_times,
    ),
    Place(
        "torch.nn.utils.clip_grad._clip_grads_with_norm_, ..._group_tensors_by_device_and_dtype,"
        " torch.nn.utils.clip_grads_with_norm_",
        FUNCTION,
        (on.ClippingByNorm, on.ClippingByValue),
        functions.place_clip,
    ),
    Place(
        "torch.autograd.backward",
        FUNCTION,
        (on.BackwardBegan, on.BackwardEnded),
        backward.place_backward,
    ),
    Place(
        "torch.autograd._engine_run_backward, which torch.autograd.grad calls",
        FUNCTION,
        (on.GradientsTaken,),
        backward.place_gradients,
        when="with an enabled GradScaler, at standard and deep",
    ),
    Place(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        REPLACED,
        (on.BatchAwaited, on.BatchArrived),
        functions.place_batches,
    ),
    Place(
        "torch.distributed.Work.wait",
        REPLACED,
        (on.CommunicationAwaited, on.CommunicationAwaitedWithin, on.CommunicationArrived),
        communication.place_communication,
        when="in trainings of several ranks",
    ),
    Place(
        "sys.exit", FUNCTION, (on.ExitCalled,), functions.place_exit, when="at standard and deep"
    ),
    Place("torch.utils.swap_tensors", FUNCTION, (on.TensorsSwapping,), forward.place_swap),
    # For no sensor, and so at every level: what is captured goes by all of them unseen.
    Place(
        "capture_begin and capture_end of torch.cuda.CUDAGraph, torch.xpu.XPUGraph,"
        " torch.accelerator.Graph and the like of another backend",
        REPLACED,
        (),
        graphs.place_graph,
    ),
    Place(
        "torch.autocast.__enter__, torch.autocast.__exit__",
        REPLACED,
        (on.AutocastEntering, on.AutocastLeft),
        forward.place_autocast,
    ),
    Place(
        "__init__ of the backends of torch.compile; where it was called,"
        " torch.nn.modules.module._has_any_global_hook and"
        " torch._dynamo.eval_frame._callback_from_stance",
        REPLACED,
        (on.CompileCalled, on.CompiledEntering),
        graphs.place_compile,
    ),
    Place(
        "__call__ of the backends of torch.compile",
        REPLACED,
        (on.GraphCaptured,),
        graphs.place_capture,
    ),
    # For no sensor: what is replaced here is not to be compiled.
    Place(
        "__init__ of the backends of torch.compile", REPLACED, (), graphs.place_keep_from_compiler
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_pre_hook",
        HOOK,
        (on.ForwardBegan,),
        forward.place_before_forward,
        when="in iterations whose ops are observed",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook",
        HOOK,
        (on.ForwardReturned,),
        forward.place_after_forward,
        when="in iterations whose outputs are measured",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook(always_call=True)",
        HOOK,
        (on.ForwardEnded,),
        forward.place_end_of_forward,
        when="in iterations whose ops are observed",
    ),
    Place(
        "torch.autograd.graph.saved_tensors_hooks.__enter__",
        REPLACED,
        (on.SavedTensorsHooked,),
        forward.place_saved_tensors,
        when="at standard and deep",
    ),
    Place(
        "__call__ of the classes of the watched models; what model.compile() has compiled;"
        " torch._dynamo.eval_frame.OptimizedModule.__call__",
        REPLACED,
        (on.RootCalled, on.RootReturned),
        forward.place_roots,
        when="always, where a model is watched",
    ),
    Place(
        "all methods of torch.distributed.ProcessGroup that return a handle (Work), and"
        " _start_coalescing; torch.distributed.Work.wait",
        REPLACED,
        (on.CollectiveBegan, on.CollectiveWaited),
        communication.place_collectives,
        when="at standard and deep",
    ),
    Place(
        "torch.linalg.svdvals, eigvalsh, pinv, cond, matrix_rank, norm, matrix_norm;"
        " torch.pinverse; torch.autograd.forward_ad.enter_dual_level",
        FUNCTION,
        (on.AlteredCalled,),
        functions.place_altered,
        when=COUNTED,
    ),
)
"""The places, in the order in which they are put on."""
