"""transformers' Trainer on a tiny GPT-2 made from a config; fp16 on a CPU by a scaler put in by hand.

With ``resume`` it goes on from a checkpoint, with ``lora`` it trains adapters of PEFT, with ``sft`` it is TRL's.
"""

from __future__ import annotations

import os
import sys
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

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
if HOW == "lora":
    import peft
elif HOW == "sft":
    import datasets
    import tokenizers
    import trl

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

SAVED_AT = 12 if HOW == "resume" else 0
"""Steps that were taken before this training."""

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


def new_trainer(model: Any, steps: int, callbacks: list[Any]) -> Any:
    """Return a Trainer, or what derives from it, that saves after its last step where a test is to go on from it."""
    kind, of_arguments, data, more = Trainer, TrainingArguments, Tokens(), {}
    if HOW == "sft":
        kind, of_arguments = trl.SFTTrainer, trl.SFTConfig
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<eos>": 0}, "<eos>"))
        more["processing_class"] = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, eos_token="<eos>", pad_token="<eos>"
        )
        data = datasets.Dataset.from_dict({"input_ids": data.tokens.tolist()})
    arguments = of_arguments(
        output_dir=directory,
        use_cpu=True,
        bf16=MODE == BFLOAT16,
        max_steps=steps,
        per_device_train_batch_size=BATCH // 4,
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="steps" if steps == SAVED_AT else "no",
        save_steps=SAVED_AT or STEPS,
        logging_steps=LOG_EVERY,
        disable_tqdm=True,
    )
    made = kind(model=model, args=arguments, train_dataset=data, callbacks=callbacks, **more)
    made.remove_callback(PrinterCallback)  # it prints how long it took
    if MODE != BFLOAT16:
        made.accelerator.state._mixed_precision = "fp16"
        made.accelerator.native_amp = True
        made.accelerator.scaler = new_scaler()
    return made


def new_model() -> Any:
    config = GPT2Config(
        vocab_size=64,
        n_positions=8,
        n_embd=32,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
    )
    made = GPT2LMHeadModel(config)
    made.transformer.h[1].mlp.dropout = Boost()
    return made


def save() -> None:
    """Train up to the checkpoint as an earlier process would have, which ends there."""
    fork = os.fork()
    if fork == 0:
        os.environ["AMPWATCH_LEVEL"] = "off"
        new_trainer(new_model(), SAVED_AT, []).train()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0


settle()
with tempfile.TemporaryDirectory() as directory:
    if SAVED_AT:
        save()
    model = new_model()
    mlp, weight = "transformer.h.1.mlp", "c_proj.weight"
    if HOW == "lora":
        model = peft.get_peft_model(
            model, peft.LoraConfig(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
        )
        mlp, weight = f"base_model.model.{mlp}", "c_proj.lora_B.default.weight"
    course = Course(model, f"{mlp}.dropout", f"{mlp}.{weight}", first=SAVED_AT)
    trainer = new_trainer(model, SAVED_AT + STEPS, [Followed(), *callbacks("transformers")])
    if MODE == BESIDE:
        watch(model, trainer.accelerator.scaler)
    try:
        trainer.train(resume_from_checkpoint=bool(SAVED_AT))
    except RuntimeError as error:
        print(f"caught: {error}")
course.write(model, *{"lora": ["peft"], "sft": ["trl"]}.get(HOW, []), "transformers", "accelerate")
