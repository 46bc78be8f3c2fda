"""What to change, per kind of finding. One sentence or two, naming the API."""

from __future__ import annotations

ADVICE = {
    "forward_overflow": (
        "Keep this op in float32: run its module with torch.autocast(device_type, enabled=False) and"
        " .float() inputs (transformers: _keep_in_fp32_modules), or train in bfloat16, which has the"
        " range of float32. For attention scores scale the query before the matmul, or use"
        " torch.nn.functional.scaled_dot_product_attention; for sums use .float() before the"
        " reduction; for a residual stream that grows rescale the outputs of its branches. A clamp"
        " hides the overflow and keeps the wrong numbers."
    ),
    "silent_overflow": (
        "Compute the statistics of this module in float32: x = x.float() before the square, the sum or"
        " the product, and cast the result back; torch.nn.RMSNorm and torch.nn.LayerNorm do it."
    ),
    "masked_row_nan": (
        "Leave each row one place to look at: combine masks as booleans (mask_a | mask_b, then one"
        " masked_fill or torch.where), fill with torch.finfo(dtype).min / 2 and never add two fills,"
        " multiply no mask of -inf; or use torch.nn.functional.scaled_dot_product_attention with a"
        " boolean attn_mask, and drop rows that are all padding."
    ),
    "forward_nan_underflow": (
        "Compute this in float32 (.float() on what goes in), and keep it off zero: take logits and"
        " use binary_cross_entropy_with_logits, log_softmax or logsumexp instead of a logarithm of"
        " probabilities; an eps has to be 1e-4 or more in float16, where 1e-8 is zero; mask rows that"
        " are empty."
    ),
    "backward_nonfinite_any_scale": (
        "Compute what has this derivative in float32 and keep it away from where the derivative is"
        " infinite: torch.sqrt(d.float() ** 2 + 1e-8), torch.linalg.vector_norm(x.float()) + eps,"
        " torch.where on the input and not only on the result. No loss scale cures it."
    ),
    "nonfinite_input": (
        "Mend the data: look for the sample (torch.isfinite(batch).all() in the dataset or the"
        " collate function, and raise there with its index), and leave it out. Changing precision or"
        " the loss scale does not help."
    ),
    "reduce_overflow": (
        "Divide before summing (gradient_predivide_factor, or gradient / world_size before the"
        " all-reduce), or reduce in float32 or bfloat16 (no fp16_compress_hook; FSDP:"
        " MixedPrecision(reduce_dtype=torch.float32)); take norms of gradient.float(), as"
        " torch.nn.utils.clip_grad_norm_ does for float32 gradients."
    ),
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
    "grad_accum_rounding": (
        "Add gradients up in float32: keep float32 parameters and use torch.autocast, reduce in"
        " float32 (fully_shard's MixedPrecisionPolicy(reduce_dtype=torch.float32)), or add p.grad to"
        " a float32 buffer after each backward. Fewer, larger micro-batches lose less."
    ),
    "ema_rounding": (
        "Keep the average in float32: torch.optim.swa_utils.AveragedModel(model.float(), ...), or"
        " copy.deepcopy(model).float() and ema.lerp_(p.float(), 1 - decay); cast it to half only"
        " where it is used."
    ),
    "metric_accum_rounding": (
        "Add metrics up in float32 or as Python floats: total = torch.zeros((), dtype=torch.float32)"
        " and total += loss.detach().float(), or total += loss.item() where a sync does not hurt."
    ),
    "lossy_integer_cast": (
        "Build positions, inv_freq and what is computed of them in float32, inside of"
        " torch.autocast(device_type, enabled=False), and cast only the result (cos and sin) to the"
        " model's dtype. Keep ids, counts and times as integers."
    ),
    "fp8_saturation": (
        "Scale by the largest magnitude of this very tensor (current scaling) or of blocks of it"
        " (MXFP8), or give delayed scaling a margin and a shorter history with its maximum"
        " (Transformer Engine: DelayedScaling(margin=..., amax_history_len=...,"
        " amax_compute_algo='max')); or keep this layer in bfloat16."
    ),
    "fp8_underflow": (
        "One outlier sets the scale for all: scale rows or blocks of their own (torchao:"
        " rowwise scaling, MXFP8), smooth or clip the outlier channel, or keep this layer in"
        " bfloat16."
    ),
    "fp8_scale_nonfinite": (
        "Give the largest magnitude a lower bound before dividing by it: amax.clamp(min=1e-12)"
        " (Transformer Engine and torchao do, by an epsilon), so that a tensor of zeros stays one."
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
    "clip_before_unscale": (
        "Call scaler.unscale_(optimizer) between backward and torch.nn.utils.clip_grad_norm_ (or"
        " clip_grad_value_), once per step and optimizer, after the last micro-batch."
    ),
    "unscaled_step": (
        "Call scaler.step(optimizer) and then scaler.update() instead of optimizer.step(): it"
        " divides the gradients by the scale and skips the step if they are not finite."
    ),
    "mixed_scaled_backward": (
        "Call scaler.scale(loss).backward() for every loss that feeds this optimizer, and"
        " scaler.unscale_(optimizer) only after the last of them; give losses that have to stay"
        " unscaled an optimizer of their own."
    ),
    "scale_changed_mid_accumulation": (
        "Call scaler.update() once per effective batch, after the steps of all optimizers; where"
        " optimizers step at different times, give each its own torch.amp.GradScaler."
    ),
    "clip_nonfinite_norm": (
        "Skip the step when the norm is not finite: `norm = clip_grad_norm_(...)`, then `if"
        " torch.isfinite(norm): optimizer.step()`; or have it raised with"
        " error_if_nonfinite=True. Then find what made this gradient non-finite."
    ),
    "backward_under_autocast": (
        "Leave the torch.autocast block before backward(): only the forward pass and the loss belong"
        " into it; backward uses the dtypes of the forward by itself. A torch.autograd.Function of"
        " your own needs torch.amp.custom_fwd and torch.amp.custom_bwd."
    ),
    "api_error": "ampwatch has left the exception as it was.",
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
