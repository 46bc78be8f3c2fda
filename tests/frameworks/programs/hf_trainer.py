"""transformers' Trainer on a tiny GPT-2 made from a config; fp16 on a CPU by a scaler put in by hand."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from shared import (
    BATCH,
    BESIDE,
    BFLOAT16,
    LOG_EVERY,
    MODE,
    STEPS,
    Boost,
    Course,
    callbacks,
    new_scaler,
    settle,
    watch,
)

warnings.filterwarnings("ignore")
transformers.utils.logging.set_verbosity_error()


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 64, (STEPS * BATCH // 4, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Followed(TrainerCallback):
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        course.begins()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        # Its AdamW is fused, which skips inside of step(): optimizer_step_was_skipped stays False.
        scaler = trainer.accelerator.scaler
        course.ended(1.0 if scaler is None else scaler.get_scale())

    def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, Any], **___: Any) -> None:
        course.log(logs, state.global_step)


settle()
config = GPT2Config(
    vocab_size=64, n_positions=8, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0.0, resid_pdrop=0.0
)
model = GPT2LMHeadModel(config)
model.transformer.h[1].mlp.dropout = Boost()
course = Course(model, "transformer.h.1.mlp.dropout", "transformer.h.1.mlp.c_proj.weight")
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        output_dir=directory,
        use_cpu=True,
        bf16=MODE == BFLOAT16,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH // 4,
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="no",
        logging_steps=LOG_EVERY,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Tokens(),
        callbacks=[Followed(), *callbacks("transformers")],
    )
    trainer.remove_callback(PrinterCallback)  # it prints how long it took
    if MODE != BFLOAT16:
        trainer.accelerator.state._mixed_precision = "fp16"
        trainer.accelerator.native_amp = True
        trainer.accelerator.scaler = new_scaler()
    if MODE == BESIDE:
        watch(model, trainer.accelerator.scaler)
    try:
        trainer.train()
    except RuntimeError as error:
        print(f"caught: {error}")
course.write(model, "transformers", "accelerate")
