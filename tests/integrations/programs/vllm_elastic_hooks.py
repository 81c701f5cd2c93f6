"""The elastic KV cache's hooks in a stand-in for vLLM: who gets them, what is refused, and how a
request that gets no memory is answered."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace as Facts
from typing import Any

import pytest

import glake
from glake import errors
from glake.integrations import vllm, vllm_elastic
from glake.integrations.vllm_elastic_memory import ATTRIBUTE, back_groups, describe_blocks

ASKED = {"glake": {"elastic_kv": True, "keep": 0}}


class FullAttentionSpec:
    pass


class MambaSpec:
    pass


class UniProcExecutor:
    """One worker with 64 blocks, 8 in a group of 16 MiB."""

    def __init__(self, spec: type = FullAttentionSpec, room: int = 99) -> None:
        self.spec, self.room, self.started = spec, room, False
        self.backed: set[int] = set()

    def start(self) -> None:
        self.started = True

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return [{"layer": self.spec()}]

    def collective_rpc(self, call: Callable[..., Any], args: tuple[Any, ...] = ()) -> list[Any]:
        if call is describe_blocks:
            return [(64, 8, 16 << 20)]
        if call is vllm_elastic.check_worker:
            return [call(None)]
        (groups,) = args
        if call is not back_groups:
            self.backed -= set(groups)
            return [None]
        if len(self.backed | set(groups)) > self.room:
            return ["no room"]
        self.backed |= set(groups)
        return [None]


class Scheduler:
    """A pool of 64 blocks, and a coordinator who needs what a test says."""

    def __init__(self, used: int = 1) -> None:
        pool = Facts(
            num_gpu_blocks=64,
            blocks=[Facts(block_id=at) for at in range(64)],
            get_num_free_blocks=lambda: 64 - used,
            _maybe_evict_cached_block=lambda block: True,
        )
        coordinator = Facts(get_num_blocks_to_allocate=lambda count, **_: count)
        self.kv_cache_manager = Facts(block_pool=pool, coordinator=coordinator)

    def schedule(self, throttle_prefills: bool = False) -> str:
        return f"scheduled {throttle_prefills}"

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        return f"updated {scheduler_output} {model_runner_output}"


def config(additional: Any = ASKED, **changed: Any) -> Any:
    """vLLM's settings, as far as the hook looks at them."""
    made = Facts(
        additional_config=additional,
        device_config=Facts(device_type="cuda"),
        model_config=Facts(enable_sleep_mode=False, enable_cumem_allocator=False),
        kv_transfer_config=None,
        speculative_config=None,
        attention_config=Facts(hisparse_config=None),
        parallel_config=Facts(
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            use_ubatching=False,
            enable_elastic_ep=False,
            enable_fault_tolerance=False,
        ),
    )
    for name, value in changed.items():
        owner = next(
            each
            for each in (made, made.device_config, made.model_config, made.parallel_config)
            if hasattr(each, name)
        )
        setattr(owner, name, value)
    return made


def core(*args: Any, **changed: Any) -> Any:
    executor = args[0] if args else UniProcExecutor()
    kind = importlib.import_module(vllm_elastic.ENGINE).EngineCore
    return kind(config(**changed), executor, args[1] if len(args) > 1 else Scheduler())


def an_untried_version_refuses_those_who_ask() -> None:
    version, vllm.version = vllm.version, lambda: "0.34.0"
    importlib.import_module(vllm_elastic.ENGINE)
    vllm_elastic.register()
    assert core(additional={}).started
    with pytest.raises(errors.GlakeError, match=r"tried with vLLM 0.33 to below 0.34, .* 0.34.0"):
        core()
    vllm.version = version
    vllm_elastic.unregister()


def without_glakes_allocator_it_is_refused() -> None:
    with pytest.raises(errors.GlakeError, match="set GLAKE_ALLOCATOR=1"):
        core()


def what_does_not_work_together_is_refused() -> None:
    for name, value, text in (
        ("device_type", "cpu", "the device 'cpu'"),
        ("enable_sleep_mode", True, "sleep mode"),
        ("enable_cumem_allocator", True, "sleep mode"),
        ("kv_transfer_config", object(), "KV connectors"),
        ("speculative_config", object(), "speculative"),
        ("pipeline_parallel_size", 2, "pipeline"),
        ("data_parallel_size", 2, "data parallel"),
        ("decode_context_parallel_size", 2, "decode context"),
        ("prefill_context_parallel_size", 2, "prefill context"),
        ("use_ubatching", True, "microbatches"),
        ("enable_elastic_ep", True, "expert parallelism"),
        ("enable_fault_tolerance", True, "fault tolerance"),
    ):
        executor = UniProcExecutor()
        with pytest.raises(errors.NotOffered, match=text):
            core(executor, **{name: value})
        assert not executor.started
        assert core(executor, additional=None, **{name: value}).started
    with pytest.raises(errors.NotOffered, match="this model has MambaSpec"):
        core(UniProcExecutor(MambaSpec))
    with pytest.raises(errors.GlakeError, match="62 of them are free"):
        core(UniProcExecutor(), Scheduler(used=2))
    with pytest.raises(glake.OutOfMemory, match="first 8 blocks"):
        core(UniProcExecutor(room=0))


def a_request_without_memory_needs_more_than_there_is() -> None:
    executor, scheduler = UniProcExecutor(room=3), Scheduler()
    made = core(executor, scheduler)
    needed = scheduler.kv_cache_manager.coordinator.get_num_blocks_to_allocate
    queue = scheduler.kv_cache_manager.block_pool.free_block_queue
    assert made.glake_elastic is queue and executor.backed == {0}
    assert needed(20, prefill_end=0) == 20 and executor.backed == {0, 1, 2}
    assert needed(24) == 65 and executor.backed == {0, 1, 2}
    blocks = queue.popleft_n(20)
    assert scheduler.schedule(throttle_prefills=True) == "scheduled True"
    queue.prepend_n(blocks)
    assert executor.backed == {0, 1, 2}  # the step may still write them
    assert scheduler.update_from_output(1, 2) == "updated 1 2"
    assert executor.backed == {0}


def workers_keep_vllms_cache_unless_asked() -> None:
    worker = importlib.import_module(vllm_elastic.WORKER).Worker(config({}))
    worker.model_runner = Facts(kv_cache_config=Facts(num_blocks=4096))
    worker.initialize_from_config(None)
    assert worker.compile_or_warm_up_model() == 5
    worker.shutdown()
    assert worker.calls == ["stock cache", "4096 blocks", "shutdown"]


def warm_up_has_memory_for_fewer_blocks() -> None:
    class Memory:
        size, room = 32, 300

        def back(self, groups: list[int]) -> None:
            if len(groups) * self.size > self.room:
                raise glake.OutOfMemory("no room")
            self.backed = groups

        def unback(self, groups: list[int]) -> None:
            self.unbacked = groups

        def close(self) -> None:
            self.closed = True

    worker = importlib.import_module(vllm_elastic.WORKER).Worker(config())
    worker.model_runner = Facts(kv_cache_config=Facts(num_blocks=4096))
    memory = Memory()
    setattr(worker, ATTRIBUTE, memory)
    assert worker.compile_or_warm_up_model() == 5
    assert worker.calls == ["256 blocks"] and memory.backed == list(range(8))
    assert memory.unbacked == list(range(1, 8))
    assert worker.model_runner.kv_cache_config.num_blocks == 4096
    memory.room = 1
    with pytest.raises(glake.OutOfMemory):
        worker.compile_or_warm_up_model()
    worker.shutdown()
    assert memory.closed and not hasattr(worker, ATTRIBUTE)


an_untried_version_refuses_those_who_ask()
vllm_elastic.register()
importlib.import_module(vllm_elastic.WORKER)
without_glakes_allocator_it_is_refused()
glake.enable()
vllm_elastic.register()
what_does_not_work_together_is_refused()
a_request_without_memory_needs_more_than_there_is()
workers_keep_vllms_cache_unless_asked()
warm_up_has_memory_for_fewer_blocks()
print("hooked")
