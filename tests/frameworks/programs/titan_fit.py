"""torchtitan's trainer by PyTorch's CUDA build over the simulated GPU: titan_fit.py FOLDER.

A Llama of its debug size, texts and a tokenizer made here. Prints its losses, exactly, which `glake
dry-run --numbers` computes on the CPU.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import glake
from glake.allocator import torch as allocator
from glake.dryrun import numbers

numbers.install()

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402 after numbers
from torchtitan.hf_datasets import text_datasets  # noqa: E402
from torchtitan.models.llama3 import config_registry  # noqa: E402

STEPS = 4


def assets(folder: Path) -> str:
    """A tokenizer of single letters."""
    words = {chr(ord("a") + at): at for at in range(26)} | {"<unk>": 26, "<s>": 27, "</s>": 28}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return str(folder)


def texts(_: str) -> Any:
    import datasets

    lines = [" ".join(chr(97 + (at * n) % 26) for at in range(300)) for n in range(1, 40)]
    return datasets.Dataset.from_dict({"text": lines})


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
    text_datasets.DATASETS["ours"] = text_datasets.DatasetConfig(
        path="ours", loader=texts, sample_processor=lambda sample: sample["text"]
    )
    config = config_registry.llama3_debugmodel()
    config.hf_assets_path = assets(folder / "assets")
    config.dump_folder = str(folder)
    config.dataloader.dataset = "ours"
    config.training.steps = STEPS
    config.training.local_batch_size = 2
    config.training.seq_len = 64
    config.training.disable_cuda_graphs = True
    config.checkpoint.enable = False
    config.validator.enable = False
    config.debug.seed = 0
    config.debug.deterministic = False
    trainer = config.build()
    losses: list[float] = []
    theirs = trainer.metrics_processor.log

    def log(step: int, loss: float, *rest: Any, **named: Any) -> Any:
        losses.append(float(loss))
        return theirs(step, loss, *rest, **named)

    trainer.metrics_processor.log = log
    trainer.train()
    trainer.close()
    told = {
        "losses": losses,
        "allocator": str(allocator.mode()),
        "allocated": torch.cuda.max_memory_allocated(),
    }
    if allocator.mode() is not None:
        told["counted"] = glake.stats()["allocated_bytes.all.peak"]
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
