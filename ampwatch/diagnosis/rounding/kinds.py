"""Kinds of findings about what formats round away."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, certain, likely, very_likely
from ampwatch.wire.records import Severity

METRIC_ACCUM_ROUNDING = Kind(
    slug="metric_accum_rounding",
    number=24,
    family=KindFamily.FORWARD_SMALL_NUMBERS,
    meaning="a running sum that has stopped growing",
    severities=(Severity.WARNING,),
    certainty=certain(
        "an addition did not change the sum, or the sum was compared with that in float32"
    ),
    advice=(
        "Add metrics up in float32 or as Python floats: total = torch.zeros((), dtype=torch.float32)"
        " and total += loss.detach().float(), or total += loss.item() where a sync does not hurt. A"
        " sum within forward: collect the terms and use torch.stack(terms).sum(0, dtype=torch.float32);"
        " index_add and scatter_add of terms.float()."
    ),
)

EMA_ROUNDING = Kind(
    slug="ema_rounding",
    number=23,
    family=KindFamily.UPDATE_PRECISION,
    meaning="an average of weights or data that does not change",
    severities=(Severity.WARNING,),
    certainty=certain("an update did not change the average"),
    advice=(
        "Keep the average in float32, and cast it to half only where it is used:"
        " torch.optim.swa_utils.AveragedModel(copy.deepcopy(model).float(), ...). Give it"
        " average.update_parameters(copy.deepcopy(model).float()); by hand, ema.lerp_(p.float(), 1 - decay). Statistics of norms: norm.float() after model.half(), with the input in"
        " half, or torch.autocast over a float32 model."
    ),
)

GRAD_ACCUM_ROUNDING = Kind(
    slug="grad_accum_rounding",
    number=22,
    family=KindFamily.UPDATE_PRECISION,
    meaning="gradient accumulation loses micro-batches to rounding",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "the gradients are kept in 16 bits, and the gradients of a micro-batch were compared with them"
    ),
    advice=(
        "Add gradients up in float32: keep float32 parameters and use torch.autocast, reduce in"
        " float32 (fully_shard's MixedPrecisionPolicy(reduce_dtype=torch.float32)), or add p.grad to"
        " a float32 buffer after each backward. Fewer, larger micro-batches lose less."
    ),
)


FP8_SATURATION = Kind(
    slug="fp8_saturation",
    number=26,
    family=KindFamily.FP8,
    meaning="values beyond the range of the scale are clipped",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain(
        "values beyond the largest number of the format were counted before the cast"
    ),
    advice=(
        "Scale by the largest magnitude of this very tensor (current scaling) or of blocks of it"
        " (MXFP8). Or give delayed scaling a margin and a shorter history with its maximum"
        " (Transformer Engine: DelayedScaling(margin=..., amax_history_len=...,"
        " amax_compute_algo='max')); or keep this layer in bfloat16."
    ),
)

FP8_UNDERFLOW = Kind(
    slug="fp8_underflow",
    number=27,
    family=KindFamily.FP8,
    meaning="many values are rounded to zero",
    severities=(Severity.WARNING,),
    certainty=certain("values that the cast makes zero were counted before it"),
    advice=(
        "Scale rows or blocks of their own (torchao: rowwise scaling, MXFP8), smooth or clip the"
        " outlier channel, or keep this layer in bfloat16: one outlier sets the scale for all."
    ),
)

FP8_SCALE_NONFINITE = Kind(
    slug="fp8_scale_nonfinite",
    number=28,
    family=KindFamily.FP8,
    meaning="a tensor of zeros has an infinite scale",
    severities=(Severity.CRITICAL,),
    certainty=certain("the scale itself was read, and is not finite"),
    advice=(
        "Give the largest magnitude a lower bound before dividing by it: amax.clamp(min=1e-12)"
        " (Transformer Engine and torchao do, by an epsilon), so that a tensor of zeros stays one."
    ),
    proven_late=2,
)


LOSSY_INTEGER_CAST = Kind(
    slug="lossy_integer_cast",
    number=25,
    family=KindFamily.FORWARD_SMALL_NUMBERS,
    meaning="positions or counts in a dtype that cannot hold them",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("the values before and after the cast were compared"),
    advice=(
        "Build positions, inv_freq and what is computed of them in float32, inside of"
        " torch.autocast(device_type, enabled=False), and cast only the result (cos and sin) to the"
        " model's dtype. Keep ids, counts and times as integers."
    ),
)


PLAN_LEFT = Kind(
    slug="plan_left",
    number=62,
    family=KindFamily.FP8,
    meaning="a layer no longer fits the format that the precision plan gave it",
    severities=(Severity.INFO,),
    certainty=likely(
        "the loss in the format was predicted from exponents and blocks, in several measurements"
    ),
    advice=(
        "Make the plan again (ampwatch.lab.plan(watch), `ampwatch lab plan`) and train this product in the format"
        " that it names now. If a few features or samples have become far larger than the others, bound"
        " these (nn.LayerNorm for features, clamp for the weights of samples): the format fits again."
    ),
)


UPDATE_ROUNDING = Kind(
    slug="update_rounding",
    number=17,
    family=KindFamily.UPDATE_PRECISION,
    meaning="optimizer steps do not change the weights",
    severities=(Severity.WARNING, Severity.CRITICAL),
    certainty=very_likely("a sample of the weights was compared before and after the updates"),
    advice=(
        "Keep float32 master weights: leave the model in float32 and use torch.autocast instead of"
        " .bfloat16() or .half(). Else use stochastic rounding (torchao) or Kahan summation (optimi),"
        " or a larger learning rate."
    ),
)
