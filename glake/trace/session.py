"""One recording, inside the child. It puts a process group, the fake mode and the recorder around a
user's job."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from glake.errors import BadTarget, PlanError
from glake.trace import fake_cuda, no_values
from glake.trace.format import TraceWriter
from glake.trace.job import Job, Step
from glake.trace.recorder import Recorder
from glake.trace.scratch import Scratch
from glake.units import size


def record(
    request: dict[str, Any],
    job: Job,
    load: Callable[[], Callable[[Job], Step]],
    progress: Callable[[int, str], None],
) -> dict[str, Any]:
    """Records `job.steps` steps of the job that `load` returns, into request["out"]. Returns the
    facts.

    Raises PlanError and whatever the user's code raises.
    """
    scratch = Scratch(request["scratch"])
    header = {
        "job": "plan",
        "target": request["target"],
        "world": job.world,
        "rank": job.rank,
        "steps": job.steps,
        "seed": job.seed,
        "attention": f"{request['attention']} (assumed)",
        "scratch": scratch.describe(),
        "recorder": "glake plan",
        "torch": torch.__version__,
    }
    with TraceWriter(request["out"], header, request["packed"]) as writer:
        recorder = Recorder(writer, scratch)
        fake_cuda.install(min(job.world, 8), request["total_bytes"], recorder.live)
        torch.manual_seed(job.seed)
        _join_fake_group(job)
        _run(recorder, job, load, progress, request["total_bytes"])
        facts = _facts(recorder, job)
        for key, value in facts.items():
            if key not in header:
                writer.fact(key, value)
    return facts


def _run(
    recorder: Recorder,
    job: Job,
    load: Callable[[], Callable[[Job], Step]],
    progress: Callable[[int, str], None],
    total_bytes: int,
) -> None:
    make_step = load()
    progress(0, "setting up")
    with _recording(recorder):
        _untraced_transformers()
        step = make_step(job)
        _untraced_transformers()
        if not callable(step):
            raise BadTarget(
                f"make_step returned {type(step).__name__}: it must return the function that does "
                "step i, def step(i): ..."
            )
        _require_number(step)
        with recorder.paused():
            recorder.name_parameters(_root_modules())
        recorder.setup_bytes = recorder.live_bytes
        if recorder.setup_bytes > total_bytes:
            raise PlanError(
                f"set-up alone leaves {size(recorder.setup_bytes)} on the device, which has "
                f"{size(total_bytes)} for the job, {size(recorder.setup_bytes - total_bytes)} too "
                "few: no step can run. Shard the model over more ranks, load it in fewer bytes, or "
                "give a larger --gpu"
            )
        for number in range(job.steps):
            progress(number + 1, f"step {number}")
            recorder.step(number)
            _require_run(step(number))
        if recorder.allocations == 0:
            raise PlanError(_NOTHING.format(device=job.device))
        recorder.flush()
        recorder.end_bytes = recorder.live_bytes


def _require_number(step: Step) -> None:
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # a function that is not Python's may have none
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise BadTarget(
            f"make_step returned {getattr(step, '__name__', 'a function')}{signature}, which "
            f"cannot be called with the number of a step ({error}): def step(i): ..."
        ) from None


def _require_run(returned: Any) -> None:
    """Refuses what a call of the step returned, if that means that none of it has run yet."""
    if inspect.isgenerator(returned) or inspect.isawaitable(returned):
        raise BadTarget(
            f"step(i) returned a {type(returned).__name__}, so nothing of it has run: give a plain "
            "function, without yield and async"
        )


_NOTHING = (
    "make_step allocated nothing on the device: move the model and what each step makes to "
    'job.device ("{device}")'
)


@contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    """A context with the modes. It keeps parts of torch out of the record."""
    # A fake device is available, but no real tensor may be made on it.
    modes: Any = FakeTensorMode
    modes.avoid_device_init = property(lambda self: True)
    with ExitStack() as stack:
        stack.enter_context(_muted_sharding(recorder))
        stack.enter_context(no_values.refused())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder.watching())
        stack.enter_context(recorder)
        yield


@contextmanager
def _muted_sharding(recorder: Recorder) -> Iterator[None]:
    """Keeps DTensor's own work out of the record. DTensor derives shapes by running operators on
    fake tensors of the whole size, and its meshes hold real tensors."""
    if not torch.distributed.is_available():
        yield
        return
    from torch.distributed import fsdp  # noqa: F401 (one of the `importers` below)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _dispatch, _sharding_prop
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    @contextmanager
    def aside() -> Iterator[None]:
        with recorder.paused(), unset_fake_temporarily():
            yield

    importers = [each for each in list(sys.modules.values()) if _has(each, "init_device_mesh")]
    patches: list[tuple[Any, str, Callable[[], Any]]] = [
        *((module, "init_device_mesh", aside) for module in importers),
        (DeviceMesh, "__init__", aside),
        (ShardingPropagator, "_propagate_tensor_meta_non_cached", recorder.paused),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    replicated = torch.nn.parallel.DistributedDataParallel
    originals.append((replicated, "__init__", replicated.__init__))
    for (owner, name, original), (_, _, context) in zip(originals, patches, strict=False):
        setattr(owner, name, _inside(original, context))
    # DTensor mistakes a fake mode for tracing, and would compute every placement again.
    deciding: tuple[Any, ...] = (_dispatch, _sharding_prop)
    for module in deciding:
        originals.append((module, "_are_we_tracing", module._are_we_tracing))
        module._are_we_tracing = lambda: False
    setattr(replicated, "__init__", _replicating(replicated.__init__))  # noqa: B010 (a method)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _replicating(original: Callable[..., Any]) -> Callable[..., Any]:
    """A DistributedDataParallel without the parts that read values (comparing ranks, timing, new
    buckets)."""
    from glake.trace.plans.engines import _all_reduced, _FirstBuckets, _NoLogger

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("init_sync") is False:  # a ready plan has replaced these parts itself
            original(self, *args, **kwargs)
            return
        original(self, *args, **{**kwargs, "init_sync": False})
        self.logger, self.reducer = _NoLogger(), _FirstBuckets(self.reducer)
        world = torch.distributed.get_world_size()
        self.register_comm_hook(world, lambda world, bucket: _all_reduced(world, bucket))

    return wrapped


def _has(module: Any, name: str) -> bool:
    return name in getattr(module, "__dict__", {})


def _inside(function: Callable[..., Any], context: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return wrapped


def _join_fake_group(job: Job) -> None:
    """Makes a process group of `world` ranks, of which only this one exists. If the job itself
    calls `init_process_group`, that does nothing."""
    local = job.rank % 8
    facts = {"RANK": job.rank, "WORLD_SIZE": job.world, "LOCAL_RANK": local}
    facts |= {"LOCAL_WORLD_SIZE": min(job.world, 8), "MASTER_PORT": 29500}
    os.environ.update({"MASTER_ADDR": "127.0.0.1"}, **{k: str(v) for k, v in facts.items()})
    if not torch.distributed.is_available():
        if job.world > 1:
            raise PlanError("this torch has no torch.distributed, which world > 1 needs")
        return
    from torch import distributed as dist
    from torch.distributed._tools import fake_collectives  # noqa: F401 (their fake kernels)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=job.rank, world_size=job.world)
    torch.cuda.set_device(local)

    def joined(*_: Any, **__: Any) -> None:
        return None

    dist.init_process_group = joined
    dist.distributed_c10d.init_process_group = joined


def _untraced_transformers() -> None:
    """transformers takes a fake tensor as a sign that a graph is traced, and then makes attention
    masks that a real run leaves out. This corrects transformers once it is imported."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    if module is not None and hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda tensor: False


def _root_modules() -> list[Any]:
    """The live modules that are no submodule of another one."""
    import gc

    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    inner = {id(child) for each in modules for child in each.children()}
    return [each for each in modules if id(each) not in inner]


def _facts(recorder: Recorder, job: Job) -> dict[str, Any]:
    # Text of several lines, or a key that is no text, has no place in a trace's header.
    facts: dict[str, Any] = {
        str(key): " ".join(str(each).split()) for key, each in job.facts.items()
    }
    told = recorder.expected.assumptions
    if told:
        facts["assumptions"] = "; ".join(f"{text} ({count} times)" for text, count in told.items())
    if recorder.pinned_peak:
        facts["peak_pinned_host_bytes"] = recorder.pinned_peak
    return {
        **facts,
        "world": job.world,
        "rank": job.rank,
        "steps": job.steps,
        "peak_live_bytes": recorder.peak_bytes,
        "setup_live_bytes": recorder.setup_bytes,
        "end_live_bytes": recorder.end_bytes,
        "allocations": recorder.allocations,
    }
