"""GPUDirect Storage over a stand-in for kvikio: what goes that way, and what follows a failure."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from driver import Stream
from memory import MIB, Device, numbers

from glake import errors
from glake import transfer as t

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))
from kvikio import cufile  # noqa: E402

SIZE = 3 * MIB + 5000


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    for each in (cufile.asked, cufile.opened, cufile.failing):
        each.clear()
    yield
    assert all(file.closed for file in cufile.opened)


@pytest.fixture
def engine() -> Iterator[t.FileEngine]:
    with t.FileEngine("1MiB", 2, gds=True) as made:
        yield made


@pytest.mark.parametrize("offset", [0, 4096, 100])
def test_whole_blocks_go_by_it(engine: t.FileEngine, tmp_path: Path, offset: int) -> None:
    data = numbers(SIZE, 1)
    path = tmp_path / "file"
    path.write_bytes(b"x" * (offset + SIZE + 10))
    gpu = Device((SIZE,), gpu=3).set(data)
    engine.write(path, gpu, offset).wait(60)
    assert path.read_bytes() == b"x" * offset + data.tobytes() + b"x" * 10
    back = Device((SIZE,), gpu=1)
    engine.read(path, back, offset).wait(60)
    assert (back.get() == data).all()
    ways = {way: sum(size for each, _, size in cufile.asked if each == way)
            for way in ("read", "write")}  # fmt: skip
    first = (-offset) % 4096
    assert ways == dict.fromkeys(ways, (SIZE - first) // 4096 * 4096)
    assert all(at % 4096 == 0 and size % 4096 == 0 for _, at, size in cufile.asked)
    found = engine.stats()
    assert found["gds_bytes"] == sum(ways.values()) and found["failed"] == 0
    assert found["read_bytes"] == found["written_bytes"] == SIZE
    host = np.zeros(SIZE, "uint8")
    before = list(cufile.asked)
    engine.read(path, host, offset).wait(60)
    assert (host == data).all() and cufile.asked == before  # host memory does not go by cuFile


@pytest.mark.parametrize("failure", ["open", "read", "write", "short read", "short write"])
def test_what_cufile_does_not_take_goes_through_buffers(
    engine: t.FileEngine, tmp_path: Path, failure: str
) -> None:
    cufile.failing[failure] = 1
    data, path = numbers(2 * MIB, 2), tmp_path / "file"
    engine.write(path, Device((2 * MIB,)).set(data)).wait(60)
    assert path.read_bytes() == data.tobytes()
    back = Device((2 * MIB,))
    engine.read(path, back).wait(60)
    assert (back.get() == data).all()
    missed = 2 * MIB if failure == "open" else MIB
    assert engine.stats()["gds_bytes"] == 4 * MIB - missed
    assert engine.stats()["buffer_bytes"] == 0  # buffers are given back after use


def test_the_stream_comes_first(engine: t.FileEngine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    stream = Stream(0)

    class Ordered(Device):
        @property
        def __cuda_array_interface__(self) -> dict:
            return super().__cuda_array_interface__ | {"stream": stream.handle}

    ordered = Ordered((MIB,))
    for value in range(1, 6):
        stream.fill(ordered.address, value, MIB)
        engine.write(path, ordered).wait(60)
        assert set(path.read_bytes()) == {value}
    assert len(cufile.asked) == 5


def test_a_file_that_ends_too_early(engine: t.FileEngine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MIB)
    with pytest.raises(errors.FileFailed, match="it has 1048576"):
        engine.read(path, Device((2 * MIB,))).wait(60)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InvalidArgument, match="leave direct=False out"):
        t.FileEngine(direct=False, gds=True)
    with pytest.raises(errors.InvalidArgument, match="gds 'yes'"):
        t.FileEngine(gds="yes")  # type: ignore[arg-type]
    monkeypatch.setenv("KVIKIO_COMPAT_MODE", "ON")
    with pytest.raises(errors.DriverAbsent, match="compatibility mode"):
        t.FileEngine(gds=True)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", None)
    with pytest.raises(errors.PackageMissing, match=r"glake\[gds\]"):
        t.FileEngine(gds=True)
