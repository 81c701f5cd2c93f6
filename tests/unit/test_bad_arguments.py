"""What public calls do not take is refused by an error of glake's, never by Python's own."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glake
from glake import _C, transfer
from glake.errors import FileFailed, GlakeError, InvalidArgument, WrongType
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


def _region(name: Any) -> None:
    with glake.region(name):
        pass


def _gather(index: Any, stride: int = 4096) -> None:
    to = np.zeros(2 * 4096, np.uint8)
    with glake.empty(1 << 20) as block:
        blocks = transfer.Blocks(block.ptr, stride, 2, 4096, 0)
        transfer.gather(to, blocks, index).wait()


CALLS: list[tuple[Callable[[Any], object], tuple[Any, ...], type[GlakeError]]] = [
    (glake.record_trace, (None, 1, 1.5, b"x", []), WrongType),
    (glake.record_trace, (HALF,), InvalidArgument),
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
    (_gather, ([0, []], [[0]], "x"), InvalidArgument),
    (lambda stride: _gather([0, 1], stride), (1 << 64, -(1 << 64)), InvalidArgument),
    (topology.from_preset, (None, 1, [], b"x"), WrongType),
    (topology.from_file, (None, 1, [], b"x"), WrongType),
    (lambda relays: transfer.bound("dgx1v", dst="cuda:0", src="cpu", relays=relays),
     (None, -1, 1 << 31, 1.5, "2"), InvalidArgument),
    (lambda scales: transfer.bound("dgx1v", dst="cuda:0", src="cpu", scales=scales),
     (np.zeros(2), [1], "x"), InvalidArgument),
    (lambda copies: transfer.joint_bound("dgx1v", copies),
     (None, 1, "x", [1], ["ab"], [("cpu", "cuda:0")], [{"dst": "cpu"}],
      {"dst": "cpu", "src": "cuda:0"}), InvalidArgument),
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
