"""vLLM's KV blocks go to host memory by glake and are found there again: hook_vllm.py MODEL.

GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim VLLM_CPU_KVCACHE_SPACE=1 python examples/hook_vllm.py
"""

import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the figures below are this process's

import vllm

import glake

extra = {"spec_name": "GlakeOffloadingSpec", "cpu_bytes_to_use": 64 << 20}
engine = vllm.LLM(
    sys.argv[1] if len(sys.argv) > 1 else "facebook/opt-125m",
    skip_tokenizer_init=True,
    dtype="float32",
    enforce_eager=True,
    max_model_len=128,
    block_size=32,
    num_gpu_blocks_override=8,
    kv_transfer_config=vllm.config.KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    ),
)
sampling = vllm.SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
prompts = [{"prompt_token_ids": list(range(first, first + 96))} for first in (1, 101, 201)]
for _ in range(2):  # the second time blocks come from host memory
    engine.generate(prompts, sampling, use_tqdm=False)
told = glake.stats()
print("stored", told["glake.integrations.vllm.stored_bytes"] >> 10, "KiB")
print("loaded", told["glake.integrations.vllm.loaded_bytes"] >> 10, "KiB")
