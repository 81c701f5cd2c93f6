"""vLLM's elastic KV cache over the simulated GPU, whose kernels compute nothing.

    vllm_elastic.py WAY FOLDER

WAY is stock (vLLM's own cache), elastic (one engine), runner (the same with the second model
runner), pair (two engines of one process), ranks (an engine of its own process with two ranks),
refused (what does not work together), or serve (an engine that does what it reads from its input,
line by line, for two processes). Prints lines of JSON.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if sys.argv[1] == "ranks" else "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions for the workers of ranks()
# The second runner's kernels say how many tokens a step gave. Here they compute nothing.
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if sys.argv[1] == "runner" else "0"

import torch
import transformers
import vllm

import glake

WAY, FOLDER = sys.argv[1], Path(sys.argv[2])
MIB = 1 << 20
# A block of 16 tokens has 256 KiB: 4 layers, keys and values of 8 heads of 128 in bfloat16.
LAYERS, BLOCKS = 4, 16384  # addresses of 4 GiB
KEEP = 64 * MIB


def model() -> str:
    """The model's folder, which the first process makes."""
    path = FOLDER / "model"
    if not path.exists():
        config = transformers.LlamaConfig(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=LAYERS,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=4096,
            architectures=["LlamaForCausalLM"],
        )
        transformers.set_seed(0)
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return str(path)


class Engine:
    """An engine, and what its requests came to."""

    def __init__(self, elastic: dict[str, Any] | None, **asked: Any) -> None:
        if elastic is not None:
            asked["additional_config"] = {"glake": {"elastic_kv": True, **elastic}}
            asked.setdefault("num_gpu_blocks_override", BLOCKS)
        self.vllm = vllm.LLM(
            model(),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            seed=0,
            disable_log_stats=True,
            **{"gpu_memory_utilization": 0.4, **asked},
        )
        self.core = self.vllm.llm_engine.engine_core.engine_core
        self.queue = getattr(self.core, "glake_elastic", None)
        self.scheduler = self.core.scheduler
        self.preempted = 0
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.preempted += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    def start(self, first: int, count: int, tokens: int = 1000, more: int = 8) -> list[str]:
        """Sends requests whose prompts differ from the first token on."""
        names = []
        for seed in range(first, first + count):
            prompt = [(seed * 37 + at * 11) % 499 for at in range(tokens)]
            sampling = vllm.SamplingParams(
                temperature=0.0, max_tokens=more, min_tokens=more, ignore_eos=True, detokenize=False
            )
            engine = self.vllm.llm_engine
            names.append(engine.add_request(f"{seed}", {"prompt_token_ids": prompt}, sampling))
        return names

    def step(self, done: dict[str, list[int]]) -> None:
        for each in self.vllm.llm_engine.step():
            if each.finished:
                done[each.request_id] = [len(each.outputs[0].token_ids), each.num_cached_tokens]

    def finish(self, most: int = 20000) -> Any:
        """Steps until every request has ended.

        Returns:
            tokens and cached tokens of each request, and what was held at the most.
        """
        done: dict[str, list[int]] = {}
        peak = steps = 0
        while self.vllm.llm_engine.has_unfinished_requests() and steps < most:
            self.step(done)
            peak, steps = max(peak, held()), steps + 1
        # A step may have begun before the last request ended. A server goes on by itself.
        while self.core.batch_queue and not self.vllm.llm_engine.has_unfinished_requests():
            self.step(done)
        return {"done": done, "peak": peak, "steps": steps, "left": held()}

    def cached_lie_in_memory(self) -> bool:
        """Whether each block that the prefix cache could find has memory."""
        pool = self.scheduler.kv_cache_manager.block_pool
        for found in list(pool.cached_block_hash_to_block._cache.values()):
            for block in found.values() if isinstance(found, dict) else [found]:
                if block.block_id // self.queue._size not in self.queue._groups:
                    return False
        return True

    def memory(self) -> Any:
        return self.core.model_executor.driver_worker.worker._glake_block_memory

    def views(self) -> list[torch.Tensor]:
        return list(self.core.model_executor.driver_worker.worker.model_runner.kv_caches)

    def end(self) -> None:
        self.core.shutdown()
        del self.vllm.llm_engine, self.vllm, self.core, self.scheduler, self.queue
        gc.collect()


def held() -> int:
    """Bytes of all tensors and pages."""
    return glake.stats()["allocated_bytes.all.current"]


def free() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def backed() -> int:
    return glake.stats().get("glake.integrations.vllm.elastic_backed_bytes", 0)


def idle_and_loaded(engine: Engine) -> dict[str, Any]:
    told = {"idle": held(), "free_idle": free()}
    engine.start(0, 16)
    told["loaded"] = engine.finish()
    told["after"] = held()
    return told


def elastic() -> dict[str, Any]:
    before = held()
    engine = Engine({"keep": KEEP})
    queue = engine.queue
    told: dict[str, Any] = {"addresses": BLOCKS * 256 << 10, "memory": torch.cuda.mem_get_info()[1]}
    told |= {"group": queue._size, "backed_idle": backed()}
    told |= idle_and_loaded(engine)
    told["kept"] = [queue.backed_groups, queue.returned, backed()]
    # The last requests' blocks are in the groups that were kept. Those of the first are not.
    engine.start(0, 1)
    told["first_again"] = engine.finish()
    engine.start(6, 1)
    told["middle_again"] = engine.finish()
    engine.start(15, 1)
    told["last_again"] = engine.finish()
    told["cached_lie_in_memory"] = engine.cached_lie_in_memory()
    told["kept_bytes_stay"] = kept_bytes_stay(engine)
    told["waits"] = waits(engine)
    told["crowd"] = crowd(engine)
    engine.end()
    del queue
    told["end"] = [held() - before, backed()]
    return told


def kept_bytes_stay(engine: Engine) -> bool:
    """Whether the bytes of kept groups outlive other requests and other tensors."""
    kept = sorted(engine.queue._groups)[-1] * engine.queue._size
    pattern = torch.arange(8 * 16 * 256, dtype=torch.int16)
    blocks = [each[kept].as_strided(pattern.shape, [1]) for each in engine.views()]
    for each in blocks:  # copies are done, where kernels are not
        each.copy_(pattern.view(torch.bfloat16))
    other = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    other.copy_(torch.full_like(other, 7, device="cpu"))
    del other
    engine.start(100, 1)
    engine.finish()
    in_memory = kept // engine.queue._size in engine.queue._groups
    return in_memory and all(torch.equal(x.cpu().view(torch.int16), pattern) for x in blocks)


def waits(engine: Engine) -> dict[str, Any]:
    """Requests wait while another tensor has all but the model's activations, and then go on."""
    torch.cuda.empty_cache()
    refused, headroom = engine.queue.refusals, engine.memory()._headroom
    other = torch.empty(free() - headroom - 24 * MIB, dtype=torch.uint8, device="cuda")
    engine.start(200, 16)
    done: dict[str, list[int]] = {}
    for _ in range(12):
        engine.step(done)
    told = {"done_meanwhile": len(done), "refusals": engine.queue.refusals - refused}
    told["headroom"] = headroom
    del other
    told["then"] = len(done) + len(engine.finish()["done"])
    return told


def crowd(engine: Engine) -> dict[str, Any]:
    """Requests that need more than the GPU has, and that grow as they run."""
    refused, before = engine.queue.refusals, engine.preempted
    engine.start(300, 70, 800, 300)
    told = engine.finish()
    tokens = sorted({each[0] for each in told.pop("done").values()})
    needed = 70 * -(-1100 // 16) * 256 << 10
    return told | {
        "needed": needed,
        "tokens": tokens,
        "refusals": engine.queue.refusals - refused,
        "preempted": engine.preempted - before,
        "cached_lie_in_memory": engine.cached_lie_in_memory(),
    }


def pair() -> dict[str, Any]:
    """Two engines of one process take turns with more than half of the GPU each."""
    engines = [Engine({"keep": "16MiB"}) for _ in range(2)]
    told: dict[str, Any] = {"memory": torch.cuda.mem_get_info()[1], "turns": []}
    for turn in range(4):
        engine = engines[turn % 2]
        engine.start(turn * 100, 40, more=64)
        said = engine.finish()
        told["turns"].append(
            {"ended": len(said["done"]), "peak": said["peak"], "left": said["left"]}
        )
    for each in engines:  # both at once
        each.start(1000, 40, more=64)
    done: dict[str, list[int]] = {}
    both = 0
    for _ in range(20000):
        if not any(each.vllm.llm_engine.has_unfinished_requests() for each in engines):
            break
        for number, each in enumerate(engines):
            said: dict[str, list[int]] = {}
            each.step(said)
            done |= {f"{number} {name}": value for name, value in said.items()}
        both = max(both, held())
    told["both"] = {
        "ended": len(done),
        "peak": both,
        "refusals": [e.queue.refusals for e in engines],
    }
    for each in engines:
        each.end()
    told["end"] = backed()
    return told


def ranks() -> dict[str, Any]:
    """Two ranks, in processes of their own, have the same groups, also when one has less room."""
    made = vllm.LLM(
        model(),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.4,
        num_gpu_blocks_override=BLOCKS,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        disable_custom_all_reduce=True,
        additional_config={"glake": {"elastic_kv": True, "keep": KEEP}},
    )
    sampling = vllm.SamplingParams(
        temperature=0.0, max_tokens=64, min_tokens=64, ignore_eos=True, detokenize=False
    )

    def load(first: int, count: int) -> list[Any]:
        prompts = [
            {"prompt_token_ids": [(seed * 37 + at * 11) % 499 for at in range(1000)]}
            for seed in range(first, first + count)
        ]
        ended = made.generate(prompts, sampling, use_tqdm=False)
        return [len(ended), *made.collective_rpc(figures)]

    told = {"idle": made.collective_rpc(figures), "loaded": load(0, 12)}
    made.collective_rpc(less_room)
    told["less"] = load(100, 80)
    return told


def figures(worker: Any) -> list[Any]:
    """A rank's bytes now and at most, and the groups that it has."""
    said, name = glake.stats(), "glake.integrations.vllm.elastic_backed_bytes"
    return [said[name], said[name + "_peak"], sorted(worker._glake_block_memory._groups)]


def less_room(worker: Any) -> None:
    """Takes most of the second rank's memory."""
    if worker.rank == 1:
        worker.other = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")


def refused() -> dict[str, str]:
    """What an engine says to settings that do not go together."""
    told = {}
    without = os.environ["GLAKE_ALLOCATOR"] == "0"
    for name, options, asked in (
        *([("alone", {}, {})] if without else []),
        ("unknown", {"kep": 1}, {}),
        ("sleep", {}, {"enable_sleep_mode": True}),
        ("size", {"keep": "many"}, {}),
    ):
        try:
            Engine(options, **asked).end()
            told[name] = "made"
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


def serve() -> None:
    engine = Engine({"keep": 0, "give_back": "driver"})
    print(json.dumps({"free": free()}), flush=True)
    for number, line in enumerate(sys.stdin):
        count = int(line)
        engine.start(number * 1000, count, more=64)
        said = engine.finish()
        answer = {"ended": len(said["done"]), "peak": said["peak"], "free": free()}
        print(json.dumps(answer | {"refusals": engine.queue.refusals}), flush=True)
    engine.end()
    print(json.dumps({"free": free(), "backed": backed()}), flush=True)


def main() -> None:
    if WAY == "serve":
        serve()
        return
    if WAY == "stock":
        before = held()
        engine = Engine(None, gpu_memory_utilization=0.8)
        told: Any = idle_and_loaded(engine)
        engine.end()
        told["end"] = [held() - before, 0]
    elif WAY == "runner":
        engine = Engine({"keep": KEEP})
        told = {"backed_idle": backed(), "peak": 0}
        engine.start(0, 16)
        told |= engine.finish(most=100)
        told["backed"] = backed()
        engine.end()
        told["end"] = backed()
    else:
        told = {"elastic": elastic, "pair": pair, "ranks": ranks, "refused": refused}[WAY]()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
