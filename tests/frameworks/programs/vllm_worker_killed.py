"""Kills vLLM's worker while it serves, and starts other engines: vllm_worker_killed.py FOLDER.

KV blocks are in glake's tier of files. The next engine finds them there, and the one after that
finds some of them cut short. Prints the tokens of each engine, how many came from the tier, the
output of the killed one, and glake's files that it left in /dev/shm.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

import psutil
import vllm
from vllm_engine import BLOCK, LENGTH, model, offloading

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # vllm_engine sets it to 0
PROMPTS = 4
OTHERS = ("glake-trainer", "glake-sim-", "glake-nccl-")


def made(path: str, folder: Path) -> Any:
    return vllm.LLM(
        path,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=BLOCK,
        num_gpu_blocks_override=24,
        enable_prefix_caching=True,
        distributed_executor_backend="mp",
        kv_transfer_config=offloading("GlakeTieringSpec:glake", folder),
        seed=0,
    )


def said(engine: Any) -> tuple[list[list[int]], int]:
    prompts = [
        {"prompt_token_ids": [(7 * number + 3 * at) % 500 + 1 for at in range(LENGTH)]}
        for number in range(PROMPTS)
    ]
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=40, detokenize=False)
    out = engine.generate(prompts, sampling, use_tqdm=False)
    tokens = [list(each.outputs[0].token_ids) for each in out]
    return tokens, sum(each.num_cached_tokens or 0 for each in out)


def children(name: str) -> list[Any]:
    """Processes with the name in their titles. A process that has ended has no title."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if name in " ".join(child.cmdline()) else []
    return found


def kill_worker() -> None:
    (worker,) = children("Worker")
    worker.kill()


def shut(engine: Any) -> None:
    engine.llm_engine.engine_core.shutdown()
    for child in children("VLLM"):
        child.wait(60)


def main() -> None:
    folder = Path(sys.argv[1])
    path = model(folder)
    before = set(os.listdir("/dev/shm"))
    told: dict[str, Any] = {"tokens": [], "cached": []}

    def serve(engine: Any) -> None:
        tokens, cached = said(engine)
        told["tokens"].append(tokens)
        told["cached"].append(cached)

    engine = made(path, folder)
    serve(engine)
    kill_worker()
    try:
        said(engine)
    except Exception as error:
        told["error"] = type(error).__name__
    shut(engine)
    engine = made(path, folder)
    serve(engine)
    shut(engine)
    for file in sorted((folder / "tier").rglob("*.bin"))[::2]:
        os.truncate(file, 1000)
    engine = made(path, folder)
    serve(engine)
    shut(engine)
    # vLLM's own file for its workers stays when one is killed. States of trainers, shared machines
    # and communicators belong to other jobs, because this one makes none.
    new = set(os.listdir("/dev/shm")) - before
    left = {name for name in new if not name.startswith(OTHERS)}
    told["left"] = sorted(name for name in left if "glake" in name or "simcuda" in name)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
