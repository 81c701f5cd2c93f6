"""A small GPT of Megatron-core over gloo on CPUs: megatron_gpt.py TP PP.

Megatron asks torch.cuda for its device and its random states; here both are the CPU's. The first
rank of the last stage prints the losses, exactly, and what the hook did.
"""

import json
import sys
from functools import partial
from typing import Any

import torch

LAYERS, WIDTH, HEADS, LENGTH, WORDS, BATCH, MICRO, STEPS = 4, 256, 4, 64, 512, 4, 2, 4
PINNED = "glake.host.allocated_bytes.current"
MOVES = ("offloaded", "reloaded")  # names of the hook's figures


def on_cpu() -> None:
    """Turns devices that Megatron names literally into the CPU, before Megatron is imported."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.set_device = lambda *_: None  # type: ignore[assignment]
    made = torch.tensor, torch.empty, torch.zeros, torch.ones

    def redirected(make: Any) -> Any:
        def there(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return make(*args, **kwargs)

        return there

    torch.tensor, torch.empty, torch.zeros, torch.ones = map(redirected, made)


class NoStates:
    """Replaces the random states of GPUs. Without dropout nothing is drawn from them."""

    def fork(self, *_: Any) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def add(self, *_: Any) -> None: ...

    def is_initialized(self) -> bool:
        return True

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, *_: Any) -> None: ...

    def reset(self) -> None: ...


def build(tp: int, pp: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel import random as states
    from megatron.core.transformer.transformer_config import TransformerConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tp, pp)
    states._CUDA_RNG_STATE_TRACKER = NoStates()
    states._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )


def train(model: Any) -> list[float]:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = []

    def forward(batches: Any, model: Any) -> Any:
        text = next(batches)
        places = torch.arange(LENGTH).expand(BATCH, LENGTH)
        out = model(text[:, :-1], places, causal, labels=text[:, 1:])
        return out, partial(lambda each: (each.mean(), {"loss": each.mean().item()}))

    for _ in range(STEPS):
        texts = torch.randint(WORDS, (MICRO, BATCH, LENGTH + 1), generator=draw)
        told = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(texts),
            model=model,
            num_microbatches=MICRO,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        for each in model.parameters():
            if each.grad is None and getattr(each, "main_grad", None) is not None:
                each.grad = each.main_grad
        optimizer.step()
        optimizer.zero_grad()
        losses += [each["loss"] for each in told]
    return losses


def offloaded() -> dict[str, Any]:
    """Moves an activation away and back, as Megatron's offloading does."""
    from megatron.core.pipeline_parallel.fine_grained_activation_offload import ChunkOffloadHandler

    import glake

    handler = ChunkOffloadHandler.__new__(ChunkOffloadHandler)
    there = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024).t()
    pinned = glake.stats()[PINNED]
    state = handler.offload(there)
    pinned = glake.stats()[PINNED] - pinned
    back = handler.reload(state)
    assert isinstance(state, tuple)  # so its callers know that the activation is away
    figures = glake.stats()
    told = {name: figures[f"glake.integrations.megatron.{name}_bytes"] for name in MOVES}
    return {"back": torch.equal(back, there), "away": state[1].nbytes, "pinned": pinned, **told}


def buffers() -> dict[str, Any]:
    """Asks twice for more than Megatron's global buffer holds."""
    from megatron.core import parallel_state

    import glake

    buffer = parallel_state.get_global_memory_buffer()
    sizes = []
    for count in (1 << 20, 1 << 21, 1 << 20):
        with glake.region("phase"):  # the buffer must not be in this region
            tensor = buffer.get_tensor((count // 16, 16), torch.float32, "test")
        assert tensor.shape == (count // 16, 16)
        del tensor
        sizes.append(glake.stats()["glake.contiguous_bytes"])
    return {"contiguous": sizes}


def main() -> None:
    on_cpu()
    tp, pp = int(sys.argv[1]), int(sys.argv[2])
    model = build(tp, pp)
    losses = train(model)
    told: dict[str, Any] = {"losses": losses}
    if "glake" in sys.modules:
        from glake import transfer

        hooked = "glake.integrations.megatron" in sys.modules

        told |= (
            buffers()
            | (offloaded() if hooked else {})
            | {"copies": transfer.stats()["bytes"] + transfer.stats()["plain_bytes"]}
        )
    if losses and torch.distributed.get_rank() % tp == 0:
        print(json.dumps(told), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
