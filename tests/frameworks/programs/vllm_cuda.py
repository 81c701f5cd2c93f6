"""vLLM's CUDA package over the simulated GPU, which computes nothing: vllm_cuda.py WAY FOLDER.

WAY is stock (without glake), a sleep backend (cumem, glake), or connector (KV blocks by glake's
connector, and the cache in single allocations). Prints a line of JSON: each step with "ok" or its
exception, the bytes that are free asleep and awake, and those in single allocations.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
import transformers

import glake

WAY, FOLDER = sys.argv[1], Path(sys.argv[2])
EXTENSIONS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "cumem_allocator")
told: dict[str, Any] = {}


def step(name: str, work: Callable[[], Any]) -> Any:
    """Does a step and notes how it went; None if it failed."""
    try:
        result = work()
    except Exception as error:
        traceback.print_exc()
        told[name] = f"{type(error).__name__}: {error}"[:400]
        return None
    told[name] = "ok"
    return result


def model(folder: Path) -> str:
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        architectures=["LlamaForCausalLM"],
    )
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "model")
    return str(folder / "model")


def engine(path: str) -> Any:
    import vllm
    from vllm.config import KVTransferConfig

    asked: dict[str, Any] = {}
    if WAY in ("cumem", "glake"):
        asked = {"enable_sleep_mode": True, "sleep_mode_backend": WAY}
    if WAY == "connector":
        extra = {"spec_name": "GlakeOffloadingSpec", "cpu_bytes_to_use": 16 << 20}
        asked["kv_transfer_config"] = KVTransferConfig(
            kv_connector="GlakeOffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
        )
    return vllm.LLM(
        path,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=128,
        num_gpu_blocks_override=64,
        seed=0,
        **asked,
    )


def generated(made: Any, name: str) -> None:
    """Runs six steps of a request, and then gives it up. Kernels compute nothing, so even the
    number of tokens is not known."""
    import vllm

    engine, prompt = made.llm_engine, {"prompt_token_ids": [1, 2, 3]}
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=4, detokenize=False)
    given = engine.add_request(name, prompt, sampling)
    for _ in range(6):
        engine.step()
    engine.abort_request([given or name], internal=True)
    engine.step()


def main() -> None:
    path = model(FOLDER)
    told["torch"] = torch.__version__
    step("import", lambda: importlib.import_module("vllm"))
    step("platform", lambda: importlib.import_module("vllm.platforms").current_platform.is_cuda())
    for name in EXTENSIONS:
        step(name, lambda name=name: importlib.import_module(f"vllm.{name}"))
    made = step("engine", lambda: engine(path))
    if made is not None:
        step("generate", lambda: generated(made, "first"))
        told["contiguous"] = glake.stats()["glake.contiguous_bytes"] if WAY != "stock" else 0
        if WAY in ("cumem", "glake"):
            step("sleep", lambda: made.sleep(level=1))
            told["free"] = [torch.cuda.mem_get_info()[0]]
            step("wake_up", lambda: made.wake_up())
            told["free"].append(torch.cuda.mem_get_info()[0])
            step("generate again", lambda: generated(made, "second"))
            told["slept"] = glake.stats()["glake.integrations.vllm.slept_bytes"]
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
