"""A training loop with Accelerate: accelerate_loop.py FOLDER. Prints its losses.

Gradients are accumulated and clipped, and the state goes to FOLDER and back half-way.
"""

import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from resting import figures, on_gpu, rest
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    words = torch.randint(256, (32, 48), generator=torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(words), batch_size=4, pin_memory=torch.cuda.is_available()
    )
    model = on_gpu(LlamaForCausalLM(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    for epoch in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss).mean().item())
        if epoch == 0:
            accelerator.save_state(sys.argv[1])
            accelerator.load_state(sys.argv[1])
        rest(model)
    print(json.dumps({"losses": losses} | figures(model)), flush=True)


if __name__ == "__main__":
    main()
