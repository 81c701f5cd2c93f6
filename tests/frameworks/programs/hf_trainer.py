"""LoRA fine-tuning by transformers' Trainer and PEFT: hf_trainer.py FOLDER. Prints its losses."""

import json
import sys
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from resting import figures, on_gpu, rest

WORDS, EXAMPLES = 256, 32


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Token lists of varying lengths."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(16, 96, (EXAMPLES,), generator=draw).tolist()
        self.texts = [torch.randint(WORDS, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.texts[at], "labels": self.texts[at]}


def padded(batch: list[dict[str, Any]]) -> dict[str, Any]:
    def pad(name: str, with_: int) -> Any:
        return torch.nn.utils.rnn.pad_sequence(
            [each[name] for each in batch], batch_first=True, padding_value=with_
        )

    return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100)}


class Resting(transformers.TrainerCallback):
    def on_epoch_end(self, *_: Any, model: Any, **__: Any) -> None:
        rest(model)


def main() -> None:
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = transformers.LlamaForCausalLM(config)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings = transformers.TrainingArguments(
        sys.argv[1],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        num_train_epochs=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        dataloader_num_workers=2,
        disable_tqdm=True,
        seed=0,
    )
    trainer = transformers.Trainer(
        model=on_gpu(get_peft_model(model, lora)),
        args=settings,
        train_dataset=Texts(),
        eval_dataset=Texts(),
        data_collator=padded,
        callbacks=[Resting()],
    )
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    losses.append(trainer.evaluate()["eval_loss"])
    print(json.dumps({"losses": losses} | figures(trainer.model)), flush=True)


if __name__ == "__main__":
    main()
