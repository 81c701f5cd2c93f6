"""vLLM's engine on CPU, its KV blocks offloaded: vllm_engine.py SPEC FOLDER.

SPEC is none, a spec's name, or that of glake's connector. GlakeTieringSpec has a tier of files in
FOLDER, which is vLLM's (fs) or glake's (GlakeTieringSpec:glake). Two rounds of the same prompts
hold more than the KV cache does. Prints the tokens, how many were cached, and how often a request
was preempted.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

import transformers
import vllm

PROMPTS, LENGTH, BLOCK, BLOCKS = 12, 96, 32, 12


def model(folder: Path) -> str:
    """A Llama of two layers. Its weights are so large that tokens depend on all attended ones."""
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        architectures=["LlamaForCausalLM"],
        initializer_range=0.15,
    )
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    return str(folder / "model")


def offloading(spec: str, folder: Path) -> Any:
    if spec == "none":
        return None
    name, _, tier = spec.partition(":")
    connector = "OffloadingConnector"
    if name == "GlakeOffloadingConnector":
        connector, name = name, "GlakeOffloadingSpec"
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": 64 << 20,
        "spec_name": name,
        "block_size": 2 * BLOCK,
    }
    if name == "GlakeTieringSpec":
        extra["secondary_tiers"] = [{"type": tier or "fs", "root_dir": str(folder / "tier")}]
        extra["cpu_bytes_to_use"] = 8 << 20
    return vllm.config.KVTransferConfig(
        kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra
    )


def preemptions() -> list[str]:
    """A list of the requests that are preempted from now on, by their numbers."""
    from vllm.v1.core.sched.scheduler import Scheduler

    theirs, found = Scheduler._preempt_request, []

    def counted(self: Any, request: Any, *rest: Any, **named: Any) -> Any:
        found.append(request.request_id)
        return theirs(self, request, *rest, **named)

    Scheduler._preempt_request = counted
    return found


def registered() -> list[int]:
    """A list of the bytes of each region of vLLM that is pinned from now on."""
    from glake.integrations import vllm_offload

    ours, found = vllm_offload.register_host, []

    def counted(tensor: Any, *rest: Any, **named: Any) -> Any:
        found.append(tensor.nbytes)
        return ours(tensor, *rest, **named)

    vllm_offload.register_host = counted
    return found


def aborted(engine: Any, sampling: Any) -> None:
    """Runs a request that its user gives up half-way."""
    prompt = {"prompt_token_ids": list(range(1, LENGTH + 1))}
    name = engine.add_request("given up", prompt, sampling)
    for _ in range(3):
        engine.step()
    engine.abort_request([name or "given up"], internal=True)
    while engine.has_unfinished_requests():
        engine.step()


def main() -> None:
    spec, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    preempted = preemptions()
    pinned = registered() if spec != "none" else []
    engine = vllm.LLM(
        model(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        max_num_seqs=6,  # more than the cache holds, so some are preempted
        enable_prefix_caching=True,
        kv_transfer_config=offloading(spec, folder),
        seed=0,
    )
    prompts = [
        {"prompt_token_ids": [(7 * number + 3 * at) % 500 + 1 for at in range(LENGTH)]}
        for number in range(PROMPTS)
    ]
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=40, detokenize=False)
    tokens, cached = [], []
    for _ in range(2):
        out = engine.generate(prompts, sampling, use_tqdm=False)
        tokens.append([list(each.outputs[0].token_ids) for each in out])
        cached.append(sum(each.num_cached_tokens or 0 for each in out))
        aborted(engine.llm_engine, sampling)
    told: dict[str, Any] = {"tokens": tokens, "cached": cached, "preempted": len(preempted)}
    if "glake" in sys.modules and spec != "none":
        import glake

        stats = glake.stats()
        told["copies"] = stats["glake.transfer.bytes"] + stats["glake.transfer.plain_bytes"]
        told["failed"] = stats["glake.transfer.failed"] + stats["glake.files.failed"]
        told["stored"] = stats["glake.integrations.vllm.stored_bytes"]
        told["contiguous"] = stats["glake.contiguous_bytes"]
        told["pinned"] = sum(pinned) + stats["glake.host.allocated_bytes.peak"]
        told["files"] = stats["glake.files.written_bytes"]
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
