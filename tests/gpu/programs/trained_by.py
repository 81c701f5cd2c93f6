"""trained_by.py HOW: trains a small model by PyTorch or another package; prints its losses as JSON.

HOW: transformers (Trainer, with PEFT's LoRA), lightning, fsdp2, ddp (one rank, NCCL).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import torch
from torch import nn

STEPS, BATCH, LENGTH, WORDS = 12, 8, 64, 512


def tokens(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(WORDS, (LENGTH,), generator=generator)


class Texts(torch.utils.data.Dataset):
    """Sequences of random words, which are their own labels."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": tokens(index), "labels": tokens(index)}


class Reader(nn.Module):
    """Predicts each word from itself, which can be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 256)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            for _ in range(4)
        )
        self.head = nn.Linear(256, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def by_transformers() -> list[float]:
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM(config),
        peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=1,
            gradient_checkpointing=True, report_to=[], save_strategy="no", seed=3, bf16=True,
            dataloader_pin_memory=True, learning_rate=1e-2, disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=Texts())
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def by_lightning() -> list[float]:
    import lightning

    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.reader = Reader()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = self.reader(batch["input_ids"])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    loader = torch.utils.data.DataLoader(Texts(), batch_size=BATCH, pin_memory=True)
    lightning.Trainer(
        max_steps=STEPS, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), loader)  # fmt: skip
    return losses


def by_ranks(shard: bool) -> list[float]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    model = Reader().cuda()
    if shard:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        words = torch.stack([tokens(step * BATCH + i) for i in range(BATCH)])
        loss = model(words.pin_memory().cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    return losses


WAYS = {
    "transformers": by_transformers,
    "lightning": by_lightning,
    "fsdp2": lambda: by_ranks(shard=True),
    "ddp": lambda: by_ranks(shard=False),
}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # with warn_only attention could differ
    found = WAYS[sys.argv[1]]()
    peak = torch.cuda.max_memory_allocated()
    ours = None
    if os.environ.get("GLAKE_ALLOCATOR"):
        import glake

        ours = glake.stats(0)["allocated_bytes.all.peak"]
    print("RESULT " + json.dumps({"losses": found, "peak": peak, "glake_peak": ours}))
