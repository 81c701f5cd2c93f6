"""Public calls refuse wrong arguments with an error of glake's, never one of Python's own."""

import contextlib
import errno
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glake
from glake import _C, simcuda, trainer, transfer
from glake.dryrun import libraries
from glake.errors import (
    FileFailed,
    GlakeError,
    InvalidArgument,
    InvalidDevice,
    InvalidOption,
    PlanError,
    ReplayError,
    TraceError,
    WrongType,
)
from glake.metrics import serve_prometheus
from glake.trace import Job, html
from glake.trace import plan as glake_plan
from glake.trace import replay as replaying
from glake.trace.convert import convert
from glake.trace.format import TraceWriter, clean_tag, read_events
from glake.transfer import topology

HALF = "\ud800"  # half a character: UTF-8 cannot encode it


@pytest.fixture(autouse=True, scope="module")
def simulated() -> Iterator[None]:
    _C.shutdown()
    _C.configure("driver", "sim")
    yield
    gc.collect()
    with contextlib.suppress(glake.TransferClosed):
        transfer.default_engine().close()
    _C.shutdown()
    _C.configure("driver", "")


def _tag(name: Any) -> None:
    with glake.tag(name):
        pass


def _contiguous(kind: Any) -> None:
    with glake.contiguous(kind):
        pass


def _pause_to(folder: Any) -> None:
    glake.pause("weights", to="disk", folder=folder)


def _region(name: Any) -> None:
    with glake.region(name):
        pass


def _gather(index: Any, stride: int = 4096) -> None:
    to = np.zeros(2 * 4096, np.uint8)
    with glake.empty(1 << 20) as block:
        blocks = transfer.Blocks(block.ptr, stride, 2, 4096, 0)
        transfer.gather(to, blocks, index).wait()


def _options() -> Any:
    """A small config of the trainer's."""
    from glake.trainer.data import Data

    return Data.Config


def _connect(address: Any) -> None:
    with transfer.Node() as node:
        node.connect(address)


def _trace() -> Any:
    return _C.parse_trace("two events", [b"a 1 512 0\nf 1\n"])


def _replay(**given: Any) -> None:
    replaying.replay(_trace(), **{"policy": "bound", **given})


def _shown(**given: Any) -> None:
    with glake.empty(1 << 20) as block:
        block.__dlpack__(**given)


CALLS: list[tuple[Callable[[Any], object], tuple[Any, ...], type[GlakeError]]] = [
    (glake.record_trace, (None, 1, 1.5, b"x", []), WrongType),
    (glake.record_trace, (HALF, "a\0b"), InvalidArgument),
    (_pause_to, (1, b"x"), WrongType),
    (_pause_to, ("a\0b",), InvalidArgument),
    (glake.dump_snapshot, (None, 1, True, b"x", []), WrongType),
    (glake.dump_snapshot, ("", "a\0b", "/", "/no/such/folder/x"), FileFailed),
    (glake.record_memory_history, ([], "some", 1), InvalidArgument),
    (lambda most: glake.record_memory_history(max_entries=most), (None, 0, "1", 1.5, []),
     InvalidArgument),
    (lambda stacks: glake.record_memory_history(stacks=stacks), ([], "c"), InvalidArgument),
    (lambda clear: glake.record_memory_history(clear_history=clear), ("", 1), InvalidArgument),
    (glake.open_shared, (None, 1, b"x"), WrongType),
    (glake.close_shared, (None, "x", np.zeros(1)), WrongType),
    (_tag, (None, b"x"), WrongType),
    (_tag, (HALF, "a\0b"), InvalidArgument),
    (_contiguous, ([], {}, None, "x"), InvalidArgument),
    (_region, (None, b"x"), WrongType),
    (_region, (HALF,), InvalidArgument),
    (lambda size: glake.Buffer(size, 0, 0, False), (None, b"x", 1.5), WrongType),
    (lambda size: glake.Buffer(size, 0, 0, False), ("x", 0), InvalidArgument),
    (lambda device: glake.Buffer(1, device, 0, False), ("x", None), InvalidDevice),
    (lambda stream: glake.Buffer(1, 0, stream, False), ("x", None), InvalidArgument),
    (lambda kind: glake.Buffer(1, 0, 0, kind), ("x", None, [], 3, -1), InvalidArgument),
    (_gather, ([0, []], [[0]], "x"), InvalidArgument),
    (lambda stride: _gather([0, 1], stride), (1 << 64, -(1 << 64)), InvalidArgument),
    (topology.from_preset, (None, 1, [], b"x"), WrongType),
    (topology.from_file, (None, 1, [], b"x"), WrongType),
    (lambda relays: transfer.bound("dgx1v", dst="cuda:0", src="cpu", relays=relays),
     (None, -1, 1 << 31, 1.5, "2"), InvalidArgument),
    (lambda scales: transfer.bound("dgx1v", dst="cuda:0", src="cpu", scales=scales),
     (np.zeros(2), [1], "x"), InvalidArgument),
    (lambda copies: transfer.joint_bound("dgx1v", copies),
     (None, 1, "x", [], [1], ["ab"], [("cpu", "cuda:0")], [{"dst": "cpu"}],
      {"dst": "cpu", "src": "cuda:0"}), InvalidArgument),
    (lambda trace: replaying.replay(trace, "bound"), (None, 1, "x"), WrongType),
    (lambda policy: _replay(policy=policy), (None, 1, b"bound"), WrongType),
    (lambda policy: _replay(policy=policy), ("", "none"), ReplayError),
    (lambda capacity: _replay(capacity=capacity), (1.5, b"1", [], True), WrongType),
    (lambda capacity: _replay(capacity=capacity), ("x", -1), InvalidArgument),
    (lambda capacity: _replay(capacity=capacity), (1 << 44, 1 << 70, "9TiB"), ReplayError),
    (lambda costs: _replay(costs=costs), (1, "published", [1], {"published"}), WrongType),
    (lambda costs: _replay(costs=costs), ([], ()), InvalidArgument),
    (replaying.require_costs, ([], ()), InvalidArgument),
    (replaying.require_policy, (None, 1), WrongType),
    (lambda event: _replay(layout_at=event), (1.5, True), WrongType),
    (lambda event: _replay(layout_at=event), ("x",), InvalidArgument),
    (lambda event: _replay(layout_at=event), (-1, 2, 1 << 70), InvalidArgument),
    (lambda ticks: _replay(complete_after=ticks), (None, "x", 1.5), WrongType),
    (lambda ticks: _replay(complete_after=ticks), (-2, 1 << 70), InvalidArgument),
    (lambda most: _replay(timeline_points=most), (None, "x", 1.5), WrongType),
    (lambda most: _replay(timeline_points=most), (-1, 1 << 70), InvalidArgument),
    (lambda also: _replay(find_min_capacity=also), (None, "no", 1), InvalidArgument),
    (lambda path: _replay(driver_path=path), (None, 1), WrongType),
    (lambda tell: _replay(progress=tell), ("x", 1), WrongType),
    (glake_plan, (None, 1, b"x", object()), WrongType),
    (lambda out: glake_plan("train-tiny", out=out), (1, b"x"), WrongType),
    *(
        (lambda value, name=name: glake_plan("train-tiny", **{name: value}), ("x", None, 1.5),
         WrongType)
        for name in ("world", "rank", "steps", "seed")
    ),
    (lambda names: glake_plan("train-tiny", policies=names), (None, 3, "glake", [1]), WrongType),
    (lambda given: glake_plan("train-tiny", options=given), (3, {"a": 1}, {1: "a"}), WrongType),
    (lambda python: glake_plan("train-tiny", python=python), (None, 3), WrongType),
    (lambda tell: glake_plan("train-tiny", progress=tell), (3, "x"), WrongType),
    (trainer.train, (None, 3, "x"), WrongType),
    (trainer.child, (None, 3, "x"), WrongType),
    (lambda platform: topology.first_gpus(platform, 1), (None, 3, "x"), WrongType),
    (lambda count: topology.first_gpus(topology.from_preset("dgx1v").platform, count),
     (None, "x", 1.5), WrongType),
    (lambda registry: serve_prometheus(0, registry=registry), (3, "x"), WrongType),
    (glake.empty, (0, -1, "x"), InvalidArgument),
    (lambda names: glake.dry_run("x.py", allocators=names), (None, 5, "glake", [1]), WrongType),
    (lambda out: glake_plan("train-tiny", out=out), ("/no/such/x", "/", "a\0b"), FileFailed),
    (lambda page: glake_plan("train-tiny", html=page), ("/no/such/x", "/", "a\0b"), FileFailed),
    (lambda names: glake_plan("train-tiny", policies=names), ([], ["none"]), PlanError),
    (lambda events: glake_plan("train-tiny", complete_after=events), (-2,), PlanError),
    (lambda events: glake_plan("train-tiny", complete_after=events), (None, "x"), WrongType),
    (lambda event: _trace().holders(event), (-1, 10**12, 10**30), InvalidArgument),
    (lambda event: _trace().lasting(event), (None, "x", 1.5), WrongType),
    (lambda points: _trace().live_timeline(points), (0, -1, 10**30), InvalidArgument),
    (lambda address: transfer.Node(listen=address), ("unix:/tmp/a\0b",), InvalidArgument),
    (_connect, ("unix:/tmp/a\0b",), InvalidArgument),
    (lambda size: glake.Headroom(size, 0), (None, [], 1.5), WrongType),
    (lambda ids: transfer.Transfer(ids, 1, None), ("x", None, 3), WrongType),
    (lambda memory: transfer.Registration(memory, False), (None, 3, "x"), WrongType),
    (lambda value: Job(world=value), (None, "2", 1.5), WrongType),
    (lambda value: Job(world=value), (0, -1), InvalidArgument),
    (lambda value: Job(rank=value), (1, -1), InvalidArgument),
    (lambda value: Job(steps=value), (0, -1), InvalidArgument),
    (lambda value: Job(options=value), (None, "x", {"a": 1}), WrongType),
    (lambda value: Job(device=value), (None, 0), WrongType),
    (lambda value: topology.Topology("a", value, "b"), (None, 4, "dgx1v"), WrongType),
    (lambda value: topology.Topology(value, topology.from_preset("dgx1v").platform, "b"),
     (None, 3), WrongType),
    (trainer.Experiment, (None, 3, "x"), WrongType),
    (_options().load, (None, 3, b"x"), WrongType),
    (_options().load, ("/no/such/x", "/", "a\0b"), FileFailed),
    (lambda path: _options()().save(path), ("/no/such/x", "/", "a\0b"), FileFailed),
    (lambda path: _options()().set(path, 1), (None, 3), WrongType),
    (lambda kind: _options()().visit(kind, id), (None, 3, int), WrongType),
    (lambda other: _options()().diff(other), (None, 3, {}), WrongType),
    (trainer.child, (int, str), WrongType),
    (lambda path: convert(path, "/dev/null"), (None, 3), WrongType),
    (lambda path: convert(path, "/dev/null"), ("/no/such/x", "/", "a\0b"), FileFailed),
    (topology.current, (3, "x", {"GLAKE_DRIVER": 3}, {3: "x"}), WrongType),
    (lambda size: simcuda.landings(0, size), (1 << 62, 1 << 70), InvalidOption),
    (replaying.load_trace, (None, 1, b"x", []), WrongType),
    (replaying.load_trace, ("", "/", "/no/such/file", "a\0b"), FileFailed),
    (lambda name: replaying.load_trace("/no/such/file", name), (None, 1), WrongType),
    (lambda path: html.write(path, _trace(), []), (None, 1, b"x"), WrongType),
    (lambda trace: html.write("x.html", trace, []), (None, 1, "x", [None]), WrongType),
    (lambda results: html.write("x.html", _trace(), results), (None, 1, "x", [1]), WrongType),
    (lambda results: html.write("x.html", _trace(), results), ([], ()), InvalidArgument),
    (TraceWriter, (None, 1, b"x"), WrongType),
    (TraceWriter, ("", "/", "/no/such/folder/x", "a\0b"), FileFailed),
    (read_events, (None, 1, b"x"), WrongType),
    (lambda path: next(read_events(path)), ("", "/", "/no/such/file"), FileFailed),
    (simcuda.calls, (None, 1, b"x", []), WrongType),
    (simcuda.calls, ("cuNone", ""), InvalidOption),
    (simcuda.cost_us, (None, 1), WrongType),
    (simcuda.cost_us, ("cuNone",), InvalidOption),
    (simcuda.ledger, (99,), InvalidDevice),
    (simcuda.price_us, (None, 1), WrongType),
    (simcuda.price_us, ("cuNone",), InvalidOption),
    (lambda table: simcuda.cost_by_us(table, "cuMemMap"), (None, [], 1), WrongType),
    (lambda key: simcuda.configure(key, 1), (None, 1), WrongType),
    (lambda symbol: simcuda.fail(symbol), (1, b"cuMemMap", []), WrongType),
    (lambda k: simcuda.fail("cuMemMap", k), (None, "1", 1.5, 1 << 70), WrongType),
    (lambda rate: simcuda.set_link("s0", "u0", rate), (None, "1", []), WrongType),
    (lambda source: simcuda.fail_copy(source), (1, []), WrongType),
    (lambda ns: simcuda.stall_copy("*", "*", 1, ns), (None, -1, 1 << 64), WrongType),
    (simcuda.tick, (None, -1, "x"), WrongType),
    (clean_tag, (5, None, b"a"), WrongType),
    (libraries.environment, (5, None, "PATH"), WrongType),
    (lambda size: simcuda.landings(4096, size), (None, 1.5, []), WrongType),
    (lambda node: simcuda.place_host(4096, 1, node), (None, "0", 1 << 40), WrongType),
    (simcuda.expect_threads, (None, "x"), WrongType),
    (simcuda.thread_at_work, (None, 1), InvalidArgument),
    (lambda clear: simcuda.violations(clear), (None, 1), InvalidArgument),
    (lambda options: transfer.Nixl(options=options), ("x", 3.5, ["ab"], {"a": 1}), InvalidArgument),
    (lambda device: transfer.Mooncake(device=device), (None, 1), InvalidArgument),
    (lambda backend: transfer.Node(backend=backend), ([], {}, 1, "none"), InvalidArgument),
    (lambda version: _shown(max_version=version), (3.5, -1, "x", True, (1,), ("1", 0)),
     InvalidArgument),
    (lambda device: _shown(dl_device=device), (3.5, -1, "x", (2,), (None, 0)), InvalidArgument),
    (lambda device: _shown(dl_device=device), ((1, 0), (2, 9)), InvalidDevice),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "value", "kind"),
    [(call, value, kind) for call, values, kind in CALLS for value in values],
)
def test_a_wrong_value_is_an_error_of_glakes(
    call: Callable[[Any], object], value: Any, kind: type[GlakeError]
) -> None:
    with pytest.raises(kind) as caught:
        call(value)
    assert caught.type is kind and len(str(caught.value)) > 10


@pytest.mark.parametrize("wrong", ["no", None, 1])
def test_verify_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"verify {wrong!r}: True or False"):
        glake.resume("weights", verify=wrong)


WRITER: list[tuple[str, dict[str, Any], type[GlakeError]]] = [
    ("alloc", {"id": "x", "nbytes": 1}, WrongType),
    ("alloc", {"id": 2, "nbytes": None}, WrongType),
    ("alloc", {"id": 2, "nbytes": 1, "tag": []}, WrongType),
    ("alloc", {"id": 2, "nbytes": 0}, TraceError),
    ("free", {"id": []}, WrongType),
    ("record_stream", {"id": 1, "stream": 1.5}, WrongType),
    ("step", {"n": None}, WrongType),
    ("fact", {"key": 1, "value": 1}, WrongType),
    ("comment", {"text": None}, WrongType),
]


@pytest.mark.parametrize(("name", "given", "kind"), WRITER)
def test_a_writer_of_traces_refuses_by_glakes_errors(
    name: str, given: dict[str, Any], kind: type[GlakeError], tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "x.trace") as writer:
        writer.alloc(1, 512)
        with pytest.raises(kind):
            getattr(writer, name)(**given)
    with pytest.raises(WrongType, match="header 'x'"):
        TraceWriter(tmp_path / "x.trace", header="x")  # type: ignore[arg-type]


def test_marks_of_tensors_take_tensors() -> None:
    torch = pytest.importorskip("torch")
    from glake import trace

    tensor = torch.zeros(2)
    for mean in ("x", None, True, [0.5]):
        with pytest.raises(WrongType, match="mean"):
            trace.assume(tensor, mean)
    with pytest.raises(InvalidArgument, match="mean nan: a finite number"):
        trace.assume(tensor, float("nan"))
    for other in (None, 1, np.zeros(1)):
        with pytest.raises(WrongType, match="a tensor of the job"):
            trace.assume(other, 0.5)  # type: ignore[arg-type]
        with pytest.raises(WrongType, match="a tensor of the job"):
            trace.kind(other, "buffer")  # type: ignore[arg-type]
    for what in ([], None, "x"):
        with pytest.raises(PlanError, match="kind .*: must be one of"):
            trace.kind(tensor, what)
    assert trace.kind(trace.assume(tensor, np.float32(0.5)), "buffer") is tensor


def test_metrics_take_a_provider_of_opentelemetry() -> None:
    pytest.importorskip("opentelemetry")
    from glake import metrics

    with pytest.raises(WrongType, match="provider 'x': a MeterProvider"):
        metrics.register_opentelemetry("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["float32", "device"])
def test_pinned_takes_a_dtype_of_torch_and_nothing_else_of_it(name: str) -> None:
    torch = pytest.importorskip("torch")
    if name == "float32":
        assert transfer.pinned(4, torch.float32).shape == (4,)
        return
    with pytest.raises(InvalidArgument, match="dtype"):
        transfer.pinned(4, torch.device("cpu"))


def test_a_recording_that_has_ended_does_not_end_the_next(tmp_path: Path) -> None:
    first = glake.record_trace(tmp_path / "first.trace")
    second = glake.record_trace(tmp_path / "second.trace")
    first.stop()
    glake.empty(1 << 20).free()
    second.stop()
    second.stop()
    assert " 1048576" in (tmp_path / "second.trace").read_text()


def test_a_file_name_with_nul_says_so() -> None:
    calls: list[Callable[[str], object]] = [
        glake.dump_snapshot,
        lambda out: glake_plan("train-tiny", out=out),
    ]
    for call in calls:
        with pytest.raises(FileFailed, match="a NUL character") as told:
            call("a\0b")
        assert told.value.errno == errno.EINVAL and "a\0b" in str(told.value.filename)
