"""What a hook costs a job that does not use what it hooks: at_rest.py STEPS NAME...

Runs steps without the hook and with it, in one process. DeepSpeed's hook has ZeRO-2 without
offload, Megatron-core's a GPT, and vLLM's a request to its engine if the package is no stand-in.
The others have a plain model. All steps are so small that Python takes most of the time, as it
does on the host of a GPU. Prints a line of JSON: driver calls of the simulator for each. If
valgrind counts instructions, CALLGRIND names a library. Its begin() and end(text) mark what counts.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import glake
from glake import integrations, simcuda

WARM = 10  # uncounted steps first, for caches, history and the optimizer's state
Step = Callable[[], None]

glake.enable()
torch.set_num_threads(1)
library = os.environ.get("CALLGRIND")
callgrind = ctypes.CDLL(library) if library else None


def layers() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    return model, torch.randn(16, 64)


def plain() -> Step:
    """A step of PyTorch alone."""
    model, inputs = layers()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def zero() -> Step:
    """A step of a DeepSpeed engine, in one process."""
    deepspeed: Any = importlib.import_module("deepspeed")
    one_rank()
    model, inputs = layers()
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 1 << 16},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)

    def step() -> None:
        engine.backward(engine(inputs).square().mean())
        engine.step()

    return step


def gpt() -> Step:
    """A step of Megatron-core's GPT, in one process."""
    theirs = job("megatron_gpt")
    theirs.on_cpu()
    theirs.LAYERS, theirs.WIDTH, theirs.LENGTH, theirs.STEPS = 2, 64, 16, 1
    one_rank()
    model = theirs.build(1, 1)
    return lambda: theirs.train(model)


def request() -> Step:
    """A request of four tokens to vLLM's engine."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm

    model: Any = job("vllm_engine").model
    engine = vllm.LLM(
        model(Path(tempfile.mkdtemp())),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        block_size=32,
        num_gpu_blocks_override=8,
        enable_prefix_caching=False,
        seed=0,
    )
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=4, detokenize=False)
    prompts = [{"prompt_token_ids": [1, 2, 3]}]
    return lambda: engine.generate(prompts, sampling, use_tqdm=False)


def job(name: str) -> Any:
    """A module of tests/frameworks/programs."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "frameworks" / "programs"))
    return importlib.import_module(name)


def one_rank() -> None:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if not torch.distributed.is_initialized():
        at = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=at, rank=0, world_size=1)


JOBS = {"deepspeed": zero, "megatron": gpt}
if importlib.util.find_spec("vllm") and importlib.util.find_spec("vllm.entrypoints"):
    JOBS["vllm"] = request


def counted(text: str, step: Step, count: int) -> int:
    for _ in range(WARM):
        step()
    before = simcuda.calls()
    if callgrind is not None:
        callgrind.begin()
    for _ in range(count):
        step()
    if callgrind is not None:
        callgrind.end(text.encode())
    return simcuda.calls() - before


def both(name: str, count: int) -> dict[str, int]:
    """Driver calls of the steps without the hook ("off") and with it ("on")."""
    importlib.import_module(importlib.import_module(f"glake.integrations.{name}").PACKAGE)
    integrations.uninstall(name)  # its import hooked it
    step = JOBS.get(name, plain)()
    off = counted(f"{name} off", step, count)
    integrations.install(name)
    on = counted(f"{name} on", step, count)
    integrations.uninstall(name)
    return {"off": off, "on": on}


def main() -> None:
    count, names = int(sys.argv[1]), sys.argv[2:]
    print(json.dumps({name: both(name, count) for name in names}), flush=True)


if __name__ == "__main__":
    main()
