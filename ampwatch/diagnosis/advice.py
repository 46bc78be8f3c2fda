"""What to change, per kind of finding. One sentence or two, naming the API."""

from __future__ import annotations

ADVICE = {
    "scale_collapse": (
        "Find the op that overflows: the scale is only the messenger, and lowering it cures nothing"
        " that does not depend on it. Look at the loss first; if it is finite, at the gradients of"
        " the optimizer named here before scaler.unscale_(). Stop the run before the scale reaches"
        " 2^-128: from there on weights become infinite. bfloat16 autocast without a GradScaler"
        " avoids the float16 limit altogether."
    ),
    "scale_below_one": (
        "The float16 range does not fit the gradients of this model: average the loss instead of"
        " summing it, normalise the targets, or use bfloat16 autocast without a GradScaler."
    ),
    "scale_runaway": (
        "Find out why the gradients are all but zero: a detached loss, dead ReLUs, a zero loss"
        " weight. If autocast is bfloat16 or off, no scaler is needed:"
        " GradScaler(enabled=(dtype is torch.float16))."
    ),
    "scaler_with_bf16": (
        "bfloat16 has the exponent range of float32 and needs no loss scaling; the scaler only adds"
        " work and can skip steps: GradScaler(enabled=(dtype is torch.float16))."
    ),
    "grad_underflow": (
        "Raise the loss scale (scaler.update(new_scale), a smaller growth_interval), or use bfloat16"
        " autocast, which has the range of float32. The what-if panel shows which scale would keep"
        " these gradients."
    ),
    "fp16_without_scaler": (
        "Scale the loss: torch.amp.GradScaler(device) with scaler.scale(loss).backward(),"
        " scaler.step(optimizer), scaler.update(); or use bfloat16 autocast, which needs no scaler."
    ),
    "range_too_wide": (
        "Bring the losses to the same order of magnitude, give each its own GradScaler and backward"
        " pass, keep the parameter named here out of autocast"
        " (torch.autocast(device_type, enabled=False)), or use bfloat16 autocast."
    ),
    "fp16_loss_caps_scale": (
        "Make the loss float32 before it is scaled: compute it from output.float(), or return"
        " loss.float() from the reduction."
    ),
    "headroom_low": (
        "Look at this module now: lower its learning rate or weight decay, put a norm before it, or"
        " run it in float32 (torch.autocast(device_type, enabled=False)) or bfloat16, before it"
        " overflows."
    ),
    "scale_stuck_low": (
        "Raise the scale by hand (scaler.update(new_scale)) or make the scaler recover faster"
        " (GradScaler(growth_interval=100)); find and drop the batches that brought it down."
    ),
    "update_rounding": (
        "Keep float32 master weights: leave the model in float32 and use torch.autocast instead of"
        " .bfloat16() or .half(). Else use stochastic rounding (torchao) or Kahan summation (optimi),"
        " or a larger learning rate."
    ),
    "optimizer_eps_underflow": (
        "Keep parameters and optimizer state in float32 and use torch.autocast instead of .half();"
        " in pure float16 give the optimizer an eps of 1e-4 or more."
    ),
    "param_nonfinite": (
        "Stop, and restore the last good checkpoint. Then find what broke them: the finding this one"
        " is attached to, or the first non-finite loss or gradient before it."
    ),
    "buffer_nonfinite": (
        "Reset the running statistics (module.reset_running_stats()) or restore them from a"
        " checkpoint. Then keep non-finite values out: clip or normalise the inputs, run the layer"
        " before it in float32 or bfloat16, skip the forward of a bad batch and not only its step."
    ),
    "fp32_matmul": (
        "Let autocast have the matmuls: take the torch.autocast(device_type, enabled=False) away, or"
        " draw it around the ops that need float32 only, and cast their results back. What has to"
        " stay in float32 runs on the tensor cores of GPUs of compute capability 8.0 and newer as"
        " TF32: torch.set_float32_matmul_precision('high')."
    ),
    "autocast_inactive": (
        "Autocast is a state of the thread, and for one type of device: enter"
        " torch.autocast(device_type, dtype) inside the function that the thread runs (in forward,"
        " for DataParallel), and hand the tensors' own device type to torch.autocast and"
        " torch.amp.GradScaler."
    ),
    "cast_overhead": (
        "Take out manual .float(), .half() and .to(dtype), and let autocast cast; merge float32"
        " islands into one; keep torch.autocast(cache_enabled=True), the default, so that a weight"
        " that is used twice is cast once. A larger batch makes the casts of weights count less, and"
        " torch.compile fuses casts with what is around them."
    ),
    "dims_unaligned": (
        "Pad the dimension to a multiple of 8 (of 16 for float8, of 64 on an A100 or newer): a"
        " vocabulary of 50257 to 50304, hidden sizes, channels, sequence lengths, the batch"
        " (DataLoader(drop_last=True)). torch.nn.Linear and Conv take the padded size; the loss"
        " ignores classes that never occur."
    ),
    "layout_nchw": (
        "Use channels_last for the model and for its inputs:"
        " model.to(memory_format=torch.channels_last) and"
        " images.to(memory_format=torch.channels_last)."
    ),
    "no_memory_gain": (
        "Autocast halves activations, not weights, gradients or the state of the optimizer. A larger"
        " batch makes more of it; to save memory on weights use bfloat16 weights with stochastic"
        " rounding or an 8-bit optimizer (torchao), shard them (fully_shard), or train adapters."
    ),
    "cpu_isa_missing": (
        "Use a dtype that the machine has instructions for. On a CPU without them train in float32,"
        " or use one with AMX or AVX512-BF16 for bfloat16. On a GPU bfloat16 needs compute"
        " capability 8.0: before that use float16 autocast with a GradScaler."
    ),
    "backend_flags": (
        "Switch on what this training can use: torch.set_float32_matmul_precision('high') lets"
        " float32 matmuls run as TF32 (10 bits of mantissa: keep positions, angles and sums of many"
        " terms out of matmuls then), and torch.backends.cudnn.benchmark = True searches the fastest"
        " convolution once per size of input, so only where sizes stay the same."
    ),
    "matmul_is_gemv": (
        "Give tensor cores a matrix: process several samples or positions at once instead of one at"
        " a time, and compute a head with a single output beside others or outside autocast."
    ),
    "kernels_outdated": (
        "Take a PyTorch built for a newer CUDA, whose cuBLAS and cuDNN have kernels for this GPU. Else"
        " look at shapes and layouts (multiples of 64, channels_last), and at attention: use"
        " torch.nn.functional.scaled_dot_product_attention."
    ),
    "scheduler_ahead": (
        "Step the scheduler only when the optimizer has stepped: `if not"
        " watch.last_step.skipped: scheduler.step()`; with a fused optimizer on a GPU, where only"
        " the device knows, compare scaler.get_scale() before and after scaler.update()"
        " (accelerate: accelerator.optimizer_step_was_skipped)."
    ),
    "scale_reset": (
        "Save scaler.state_dict() in every checkpoint, beside the model's and the optimizer's, and"
        " restore it with scaler.load_state_dict() before the first step. Without one set the scale"
        " by hand: GradScaler(init_scale=...)."
    ),
    "periodic_skip": (
        "Find what these steps compute and the others do not: a lazy regularisation, a rare batch."
        " Compute that term in float32 (torch.autocast(device_type, enabled=False)), or give it a"
        " backward pass and a GradScaler of its own; a growth_interval that is much longer than the"
        " period keeps the scale low enough for it."
    ),
    "shared_scaler_desync": (
        "Find what overflows in the forward or the loss of the optimizer named here. Give each"
        " optimizer its own GradScaler, or skip both when one is skipped."
    ),
    "rank_found_inf_mismatch": (
        "Make the ranks agree before they step: all-reduce found_inf (the maximum) between"
        " scaler.unscale_(optimizer) and scaler.step(optimizer), or use"
        " torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, which does. From here on the"
        " replicas are different models: restore a checkpoint."
    ),
    "divergence": (
        "Lower the learning rate, warm it up for longer, or clip gradients"
        " (torch.nn.utils.clip_grad_norm_ after scaler.unscale_(optimizer)). Another precision or"
        " loss scale does not help. Go on from a checkpoint of before the rise."
    ),
    "stale_autocast_cache": (
        "Leave torch.autocast before optimizer.step() and enter it again for the next forward. Else"
        " call torch.clear_autocast_cache() after each step, or use"
        " torch.autocast(device_type, dtype, cache_enabled=False)."
    ),
    "compile_backward_autocast": (
        "Set torch._functorch.config.backward_pass_autocast = 'off' before anything is compiled, or"
        " enter torch.autocast inside the compiled function instead of around it."
    ),
}
"""Kind of finding to advice. The kinds are frozen: they are labels, links and page names."""
