"""An elastic KV cache for vLLM: addresses for all blocks, memory for those in use.

A job asks for it by vLLM's own setting, `additional_config={"glake": {"elastic_kv": True}}`. Then
several engines, of one process or several, share a GPU: each holds what its requests have at the
moment. vLLM's plug-in calls register(), which changes nothing for other jobs.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glake import _C, integrations
from glake.allocator import torch as allocator
from glake.allocator.virtual import VirtualBuffer
from glake.arguments import flag, size
from glake.errors import GlakeError, InvalidArgument, NotOffered, OutOfMemory, WrongType
from glake.hints import did_you_mean
from glake.integrations import imports, vllm_elastic_memory
from glake.integrations.replacing import replace
from glake.integrations.vllm_elastic_blocks import ElasticQueue
from glake.integrations.vllm_elastic_memory import ATTRIBUTE, BlockMemory, Ranks

# The least version of vLLM that was tried, and the first that was not.
VERSIONS = ("0.33", "0.34")
ENGINE, WORKER = "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker"
# Blocks of these are freed when a request ends, and not while a kernel may still look at them.
SPECS = ("FullAttentionSpec", "MLAAttentionSpec")
EXECUTORS = ("UniProcExecutor", "MultiprocExecutor")
_WARM_UP_BLOCKS = 1024
_OTHERS = 20
_MODES = ("adapter", "emulation")


@dataclass(frozen=True)
class Options:
    """What a job asks for, in bytes of each rank.

    Attributes:
        keep: wholly free groups stay backed up to this much, for the prefix cache and the next
            request.
        headroom: what stays free for activations; None: their peak in vLLM's profile, and a
            twentieth of the GPU's memory.
        to_driver: whether memory goes back to the driver, for other processes.
    """

    keep: int = 256 << 20
    headroom: int | None = None
    to_driver: bool = False


_GIVEN = {"elastic_kv", "keep", "headroom", "give_back"}
_TO = ("process", "driver")


def read(additional: object) -> Options | None:
    """The options in a job's `additional_config`; None if it does not ask for the elastic KV cache.

    Args:
        additional: vLLM's `additional_config`.

    Raises:
        InvalidArgument: there is no such option, or it has no such value.
        WrongType: a value of another type.
    """
    if not isinstance(additional, Mapping) or "glake" not in additional:
        return None
    asked = additional["glake"]
    if not isinstance(asked, Mapping):
        raise WrongType(f'additional_config["glake"] is a dict of options, not {asked!r}')
    for name in asked:
        if name not in _GIVEN:
            near = did_you_mean(str(name), _GIVEN)
            raise InvalidArgument(
                f'additional_config["glake"] has no option {name!r}{near}; there are: '
                + ", ".join(sorted(_GIVEN))
            )
    to = asked.get("give_back", "process")
    if to not in _TO:
        raise InvalidArgument(f"give_back {to!r}: {' or '.join(map(repr, _TO))}")
    headroom = asked.get("headroom")
    made = Options(
        size("keep", asked.get("keep", Options.keep)),
        None if headroom is None else size("headroom", headroom),
        to == "driver",
    )
    if not flag("elastic_kv", asked.get("elastic_kv", False)):
        return None
    if any(each["name"] == "cooperate" and each["value"] == "1" for each in _C.options()):
        warnings.warn(
            "GLAKE_COOPERATE=1 gives the headroom of an engine with an elastic KV cache to other "
            "processes that run out, and an engine whose step runs out ends: leave it off, and "
            'share memory by "give_back": "driver"',
            RuntimeWarning,
            stacklevel=2,
        )
    return made


def register() -> None:
    """Hooks vLLM's engine and worker once they are imported. A second call does nothing new.

    A failure is told to the jobs that ask for the elastic KV cache: they do not start.
    """
    for module, hook in ((ENGINE, _hook_engine), (WORKER, _hook_worker)):
        imports.after(module, hook)


def unregister() -> None:
    """Takes the hooks out. Engines that run go on."""
    while _made:
        _made.popitem()[1].close()
    _failures.clear()


_made: dict[str, contextlib.ExitStack] = {}
_failures: dict[str, str] = {}


def _hook_engine() -> None:
    _hook(ENGINE, _replace_in_engine)


def _hook_worker() -> None:
    _hook(WORKER, _replace_in_worker)


def _hook(name: str, work: Callable[[contextlib.ExitStack, Any], None]) -> None:
    if name in _made:
        return
    with contextlib.ExitStack() as made:
        try:
            _check_version()
            work(made, sys.modules[name])
        except Exception as error:
            # Nobody has asked for anything yet. Those who do are told by _check().
            _failures[name] = str(error) or repr(error)
            with contextlib.suppress(AttributeError):
                _refuse_in_engine(made, sys.modules[ENGINE])
        _made[name] = made.pop_all()


def _check_version() -> None:
    found = integrations._hook("vllm").version()
    first, below = map(integrations._release, VERSIONS)
    if not first <= integrations._release(found) < below:
        raise NotOffered(
            f"the elastic KV cache was tried with vLLM {VERSIONS[0]} to below {VERSIONS[1]}, and "
            f"this is {found}"
        )


def _replace_in_engine(made: contextlib.ExitStack, module: Any) -> None:
    core = module.EngineCore
    start, after = core._initialize_kv_caches, core._initialize_effective_attention_block_size

    def _initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        if read(vllm_config.additional_config) is not None:
            _check(self.model_executor, vllm_config)
        return start(self, vllm_config)

    def _initialize_effective_attention_block_size(self: Any) -> None:
        after(self)
        options = read(self.vllm_config.additional_config)
        if options is not None:
            self.glake_elastic = attach(self.scheduler, self.model_executor.collective_rpc, options)

    replace(made, core, start.__name__, _initialize_kv_caches)
    replace(made, core, after.__name__, _initialize_effective_attention_block_size)


def _refuse_in_engine(made: contextlib.ExitStack, module: Any) -> None:
    core = module.EngineCore
    start = core._initialize_kv_caches

    def _initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        if read(vllm_config.additional_config) is not None:
            raise GlakeError(f"no elastic KV cache: {' '.join(_failures.values())}")
        return start(self, vllm_config)

    replace(made, core, start.__name__, _initialize_kv_caches)


def _replace_in_worker(made: contextlib.ExitStack, module: Any) -> None:
    worker = module.Worker
    start, warm_up, end = (
        worker.initialize_from_config,
        worker.compile_or_warm_up_model,
        worker.shutdown,
    )

    def initialize_from_config(self: Any, kv_cache_config: Any) -> None:
        options = read(self.vllm_config.additional_config)
        if options is None:
            start(self, kv_cache_config)
        else:
            _make_cache(self, kv_cache_config, options, start)

    def compile_or_warm_up_model(self: Any) -> Any:
        if ATTRIBUTE not in vars(self) or not self.use_v2_model_runner:
            return warm_up(self)
        with _warm_up_memory(vars(self)[ATTRIBUTE], self.model_runner.kv_cache_config):
            return warm_up(self)

    def shutdown(self: Any) -> None:
        try:
            end(self)
        finally:
            # Something may still have the tensors, but nobody uses them.
            memory = vars(self).pop(ATTRIBUTE, None)
            if memory is not None:
                memory.close()

    replace(made, worker, start.__name__, initialize_from_config)
    replace(made, worker, warm_up.__name__, compile_or_warm_up_model)
    replace(made, worker, end.__name__, shutdown)


def _make_cache(
    worker: Any, config: Any, options: Options, start: Callable[[Any, Any], None]
) -> None:
    """Has vLLM make its KV cache over addresses alone, and backs its first blocks."""
    import torch

    (nbytes,) = {each.size for each in config.kv_cache_tensors}
    device = torch.device(worker.device)
    buffer = VirtualBuffer(nbytes, device, torch.cuda.current_stream(device))
    raw = buffer.tensor(torch.int8, [nbytes])
    served: list[int] = []

    class Addresses(torch.overrides.TorchFunctionMode):
        """Gives `raw` where allocate_kv_cache() asks for zeros of the whole cache."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if (
                function is torch.zeros
                and args == (nbytes,)
                and kwargs.get("dtype") is torch.int8
                and torch.device(kwargs.get("device", "cpu")).type == "cuda"
            ):
                served.append(nbytes)
                return raw
            return function(*args, **kwargs)

    with Addresses():
        start(worker, config)
    if len(served) != 1:
        raise NotOffered(
            f"vLLM has made its KV cache of {nbytes} bytes in {len(served)} pieces of that size, "
            "and the elastic KV cache knows one"
        )
    headroom = options.headroom
    if headroom is None:
        # vLLM's profile does not run attention, which takes workspaces. For these vLLM leaves the
        # rest of gpu_memory_utilization.
        total = torch.cuda.mem_get_info(device)[1]
        headroom = int(getattr(worker, "peak_activation_memory", 0)) + total // _OTHERS
    views = worker.model_runner.kv_caches
    memory = vllm_elastic_memory.make(
        raw, buffer, views, config.num_blocks, headroom=headroom, to_driver=options.to_driver
    )
    # Requests that are padded, and those of warm-up, read and write the null block.
    memory.back([0])
    setattr(worker, ATTRIBUTE, memory)


@contextlib.contextmanager
def _warm_up_memory(memory: BlockMemory, config: Any) -> Iterator[None]:
    """Memory for the blocks that warm-up takes from 1 on: fewer of them, if all have no room.

    vLLM's second model runner sends itself requests with blocks of its own choice, as many as the
    cache has.
    """
    blocks = config.num_blocks
    few = min(blocks, max(_WARM_UP_BLOCKS, memory.size))
    while True:
        groups = list(range(-(-few // memory.size)))
        try:
            memory.back(groups)
            break
        except OutOfMemory:
            if few <= memory.size:
                raise
            few = max(few // 2, memory.size)
    config.num_blocks = few
    try:
        yield
    finally:
        config.num_blocks = blocks
        memory.unback(groups[1:])


def attach(scheduler: Any, rpc: Callable[..., list[Any]], options: Options) -> ElasticQueue:
    """Makes a scheduler's free blocks those of an elastic KV cache.

    Args:
        scheduler: vLLM's scheduler, before its first step.
        rpc: calls a function with each worker.
        options: the job's.

    Raises:
        GlakeError: a worker has no elastic KV cache, or ranks differ, or blocks are in use already.
        OutOfMemory: there is no memory for the first blocks.
    """
    manager = scheduler.kv_cache_manager
    pool, coordinator = manager.block_pool, manager.coordinator
    ranks = Ranks(rpc)
    blocks, group, most = ranks.describe()
    if blocks != pool.num_gpu_blocks or pool.get_num_free_blocks() != blocks - 1:
        raise GlakeError(
            f"the workers have {blocks} KV blocks, the scheduler has {pool.num_gpu_blocks}, and "
            f"{pool.get_num_free_blocks()} of them are free: an elastic KV cache begins with all "
            "but the null block free"
        )
    queue = ElasticQueue(
        pool.blocks, group, options.keep // most, ranks, pool._maybe_evict_cached_block
    )
    pool.free_block_queue = queue
    needed, schedule = coordinator.get_num_blocks_to_allocate, scheduler.schedule
    update = scheduler.update_from_output

    def get_num_blocks_to_allocate(*args: Any, **kwargs: Any) -> int:
        # KVCacheManager.allocate_slots() asks this before it changes anything, and gives up if
        # more blocks are needed than are free. So memory is asked for here: if there is none, the
        # answer is more blocks than there can be, and the request waits, or another is preempted.
        number = int(needed(*args, **kwargs))
        return number if queue.prepare(number) else blocks + 1

    def scheduled(*args: Any, **kwargs: Any) -> Any:
        queue.begin_step()
        return schedule(*args, **kwargs)

    def updated(*args: Any, **kwargs: Any) -> Any:
        outputs = update(*args, **kwargs)
        queue.end_step()
        return outputs

    coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate
    scheduler.schedule, scheduler.update_from_output = scheduled, updated
    return queue


def check_worker(worker: Any) -> str | None:
    """Why a worker cannot have an elastic KV cache; None: it can.

    Args:
        worker: vLLM's worker.
    """
    if allocator.mode() not in _MODES:
        return "glake is not PyTorch's allocator: set GLAKE_ALLOCATOR=1 (and GLAKE_STRICT=1)"
    if WORKER not in _made or WORKER in _failures:
        return _failures.get(WORKER, f"this worker is not vLLM's {WORKER}.Worker")
    return None


def _check(executor: Any, config: Any) -> None:
    """Raises NotOffered for what does not work together, before anything is allocated."""
    texts = [text for refused, text in _together(executor, config) if refused]
    if texts:
        raise NotOffered(f"the elastic KV cache does not work with {', '.join(texts)}")
    for text in executor.collective_rpc(check_worker):
        if text is not None:
            raise GlakeError(f"no elastic KV cache: {text}")
    specs = [spec for rank in executor.get_kv_cache_specs() for spec in rank.values()]
    names = {type(each).__name__ for each in specs}
    if not names or not names <= set(SPECS):
        raise NotOffered(
            f"the elastic KV cache knows layers of {' and '.join(SPECS)}, and this model has "
            f"{', '.join(sorted(names)) or 'no such layers'}: other layers free blocks of requests "
            "that run, or keep states in them"
        )


def _together(executor: Any, config: Any) -> Iterator[tuple[bool, str]]:
    model, ranks = config.model_config, config.parallel_config
    kind, device = type(executor).__name__, config.device_config.device_type
    yield device != "cuda", f"the device {device!r}"
    yield kind not in EXECUTORS, f"the executor {kind}"
    sleeps = model.enable_sleep_mode or model.enable_cumem_allocator
    yield sleeps, "sleep mode (enable_sleep_mode, enable_cumem_allocator)"
    yield config.kv_transfer_config is not None, "KV connectors (kv_transfer_config)"
    yield config.speculative_config is not None, "speculative decoding (speculative_config)"
    yield config.attention_config.hisparse_config is not None, "HiSparse"
    yield ranks.pipeline_parallel_size > 1, "pipeline parallelism"
    yield ranks.data_parallel_size > 1, "data parallelism"
    yield ranks.decode_context_parallel_size > 1, "decode context parallelism"
    yield ranks.prefill_context_parallel_size > 1, "prefill context parallelism"
    yield ranks.use_ubatching, "microbatches (enable_dbo)"
    yield ranks.enable_elastic_ep, "elastic expert parallelism"
    yield ranks.enable_fault_tolerance, "fault tolerance"
