"""Environments in which people train, one row each: what is tested by a program, and what is a recipe only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Where(Enum):
    """Where a row is tried: by CI, or by hand with ``make test-frameworks ARGS=--all``."""

    CI = "CI"
    HAND = "by hand"


@dataclass(frozen=True)
class Environment:
    """One row that a program stands for.

    Attributes:
        name: Name of the row in results and tests.
        title: What stands in the first column.
        program: File in ``programs/``, and its arguments.
        edit: The edit that was made, in words.
        where: Where it is tried.
        ranks: Processes that train.
        by_torchrun: Whether torchrun starts them under ``ampwatch run``; else they are told what it tells
            them. Of others the program itself starts them.
        needs: Modules that have to be importable.
        truths: Findings that are made of the healthy training, and are true; and why.
        mode: What else the program is told.
        dtypes: Dtypes in which the program multiplies matrices.
    """

    name: str
    title: str
    program: tuple[str, ...]
    edit: str = "`ampwatch.monitor(model, scaler)` before the loop"
    where: Where = Where.CI
    ranks: int = 1
    by_torchrun: bool = False
    needs: tuple[str, ...] = ()
    truths: tuple[tuple[str, str], ...] = ()
    mode: str = ""
    dtypes: tuple[str, ...] = ("float16",)


@dataclass(frozen=True)
class Recipe:
    """One row that nothing has been run for.

    Attributes:
        title: What stands in the first column.
        how: What to write, and why it is expected to do.
    """

    title: str
    how: str


CALLBACK = "`callbacks=[ampwatch.integrations.{}.AmpwatchCallback()]`"

ENVIRONMENTS = (
    Environment("plain", "PyTorch, plain loop", ("plain.py",)),
    Environment("ddp", "DDP, gloo, 2 ranks", ("ddp.py",), ranks=2, by_torchrun=True),
    Environment(
        "fsdp2", "FSDP2 (`fully_shard`), gloo, 2 ranks", ("fsdp2.py",), ranks=2, by_torchrun=True
    ),
    Environment(
        "fsdp2-policy",
        "FSDP2 with MixedPrecisionPolicy, gloo, 2 ranks",
        ("fsdp2.py", "policy"),
        where=Where.HAND,
        ranks=2,
        by_torchrun=True,
    ),
    Environment(
        "fsdp1",
        "FSDP1 with ShardedGradScaler, gloo, 2 ranks",
        ("fsdp1.py",),
        where=Where.HAND,
        ranks=2,
        by_torchrun=True,
    ),
    Environment(
        "tensor-parallel",
        "Tensor parallel (DTensor), gloo, 2 ranks",
        ("tensor_parallel.py",),
        where=Where.HAND,
        ranks=2,
        by_torchrun=True,
    ),
    Environment(
        "torchtitan",
        "FSDP2 in bfloat16 as torchtitan has it: blocks checkpointed and compiled, gloo, 2 ranks",
        ("torchtitan_loop.py",),
        "`ampwatch.monitor(model)` before the loop",
        where=Where.HAND,
        ranks=2,
        by_torchrun=True,
        dtypes=("bfloat16",),
    ),
    Environment("compile", "torch.compile of the model, `aot_eager`", ("compiled.py",)),
    Environment("checkpoint", "torch.utils.checkpoint", ("checkpointing.py",), where=Where.HAND),
    Environment("func", "torch.func.grad_and_value", ("functional.py",), where=Where.HAND),
    Environment(
        "lightning",
        "Lightning Trainer, 16-mixed",
        ("lightning_trainer.py", "1", "lightning"),
        CALLBACK.format("lightning"),
        needs=("lightning",),
    ),
    Environment(
        "lightning-ddp",
        "Lightning Trainer, 16-mixed, ddp, 2 ranks",
        ("lightning_trainer.py", "2", "lightning"),
        CALLBACK.format("lightning"),
        where=Where.HAND,
        ranks=2,
        needs=("lightning",),
    ),
    Environment(
        "pytorch-lightning",
        "Lightning Trainer of the package pytorch-lightning",
        ("lightning_trainer.py", "1", "pytorch-lightning"),
        CALLBACK.format("lightning"),
        where=Where.HAND,
        needs=("pytorch_lightning",),
    ),
    Environment(
        "lightning-manual",
        "Lightning, manual optimisation",
        ("lightning_manual.py",),
        CALLBACK.format("lightning"),
        where=Where.HAND,
        needs=("lightning",),
    ),
    Environment(
        "lightning-gan",
        "Lightning, manual optimisation of two optimizers (GAN)",
        ("lightning_manual.py", "gan"),
        CALLBACK.format("lightning"),
        where=Where.HAND,
        needs=("lightning",),
    ),
    Environment(
        "fabric",
        "Lightning Fabric",
        ("fabric.py",),
        "`ampwatch.monitor(model, fabric.strategy.precision)` after `setup`",
        where=Where.HAND,
        needs=("lightning",),
    ),
    Environment(
        "hf-trainer",
        "transformers Trainer (GPT-2)",
        ("hf_trainer.py",),
        CALLBACK.format("transformers"),
        needs=("transformers",),
    ),
    Environment(
        "hf-trainer-resume",
        "transformers Trainer, from a checkpoint",
        ("hf_trainer.py", "resume"),
        CALLBACK.format("transformers"),
        needs=("transformers",),
    ),
    Environment(
        "peft",
        "PEFT, LoRA in the Trainer",
        ("hf_trainer.py", "lora"),
        CALLBACK.format("transformers"),
        where=Where.HAND,
        needs=("transformers", "peft"),
    ),
    Environment(
        "trl",
        "TRL, SFTTrainer",
        ("hf_trainer.py", "sft"),
        CALLBACK.format("transformers"),
        where=Where.HAND,
        needs=("trl", "datasets", "pyarrow"),
    ),
    Environment(
        "diffusers",
        "diffusers (UNet2DModel, EMAModel), accelerate",
        ("diffusers_unet.py",),
        "`ampwatch.monitor(accelerator)` after `prepare`",
        where=Where.HAND,
        needs=("diffusers", "accelerate"),
    ),
    Environment(
        "accelerate",
        "accelerate, accumulation over 2 batches",
        ("accelerate_loop.py",),
        "`ampwatch.monitor(accelerator)` after `prepare`",
        needs=("accelerate",),
    ),
    Environment(
        "timm",
        "timm (ViT, NativeScaler, ModelEmaV3)",
        ("timm_scaler.py",),
        "`ampwatch.monitor(model, loss_scaler._scaler)` before the loop",
        needs=("timm",),
    ),
    Environment(
        "torchao",
        "torchao, float8 training, tensorwise, emulated",
        ("torchao_float8.py", "tensorwise"),
        needs=("torchao",),
        dtypes=("float16", "float8_e4m3fn"),
    ),
    Environment(
        "ignite",
        "ignite Engine",
        ("ignite_engine.py",),
        "`ampwatch.monitor(model, scaler)` at `Events.STARTED`",
        where=Where.HAND,
        needs=("ignite",),
    ),
    Environment(
        "skorch",
        "skorch NeuralNet",
        ("skorch_net.py",),
        "`ampwatch.monitor(net.module_, scaler)` in `on_train_begin` of a callback",
        where=Where.HAND,
        needs=("skorch",),
    ),
    Environment(
        "fastai",
        "fastai Learner, MixedPrecision",
        ("fastai_learner.py",),
        "`ampwatch.monitor(learn.model, learn.scaler)` in `before_fit` of a callback",
        where=Where.HAND,
        needs=("fastai",),
    ),
    *(
        Environment(
            f"deepspeed{stage or ''}",
            f"DeepSpeed engine, fp16, ZeRO {stage}" + (", gloo, 2 ranks" if stage else ""),
            ("deepspeed_engine.py", str(stage)),
            "`ampwatch.monitor(engine)` after `initialize`",
            where=Where.HAND,
            ranks=2 if stage else 1,
            by_torchrun=bool(stage),
            needs=("deepspeed",),
        )
        for stage in range(3)
    ),
)

FOUND_BY_ITSELF = "found by `ampwatch run`: [scalers](using.md#frameworks)"

RECIPES = (
    Recipe(
        "DeepSpeed, ZeRO 3",
        f"`ampwatch.monitor(engine)`, or {FOUND_BY_ITSELF}; scale and skips are known, gradients are not",
    ),
    Recipe("apex.amp", f"`ampwatch.monitor(model)` after `amp.initialize`, or {FOUND_BY_ITSELF}"),
    Recipe("Megatron-Core", f"`ampwatch.monitor(model, optimizer)`, or {FOUND_BY_ITSELF}"),
    Recipe("fairseq, Metaseq", f"`ampwatch.monitor(model)`, or {FOUND_BY_ITSELF}"),
    Recipe(
        "Any other loss scaler",
        "`ampwatch.monitor(model, ampwatch.LossScaler(...))`: [scalers](using.md#scalers-that-are-not-torchs)",
    ),
    Recipe(
        "Composer",
        "`ampwatch.monitor(state.model, state.scaler)` in a callback at `Event.FIT_START`; its scalers are GradScalers",
    ),
    Recipe(
        "torchtune",
        "FSDP2 in bfloat16 has no scaler: `ampwatch.monitor(model)` before the loop",
    ),
    Recipe(
        "Transformer Engine",
        "`ampwatch.monitor(model)` before the loop; its kernels cast and multiply out of sight:"
        " [FP8](lab.md#fp8)",
    ),
    Recipe(
        "ROCm, Intel XPU, Apple MPS", "As for a plain loop; [what has run](#what-has-run-on-what)"
    ),
)
