"""Every call that takes a GPU takes it as a number, by name and as torch's device."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import glake
from glake import _C, simcuda, transfer
from glake.errors import InvalidArgument, InvalidDevice
from glake.typing import Device

SIZE = 1 << 20


def _torch_device() -> Any:
    return pytest.importorskip("torch").device("cuda", 1)


GPU_1 = [
    pytest.param(lambda: 1, id="int"),
    pytest.param(lambda: np.int64(1), id="numpy"),
    pytest.param(lambda: "cuda:1", id="name"),
    pytest.param(_torch_device, id="torch"),
]


@pytest.fixture(autouse=True, scope="module")
def simulated() -> Iterator[None]:
    _C.shutdown()
    simcuda.reset()
    _C.configure("driver", "sim:dgx1v")
    yield
    gc.collect()
    transfer.default_engine().close()
    _C.shutdown()
    simcuda.reset()
    _C.configure("driver", "")


@pytest.fixture(params=GPU_1)
def gpu(request: pytest.FixtureRequest) -> Device:
    given: Device = request.param()
    return given


def test_raw_memory_takes_it(gpu: Device) -> None:
    sent, back = np.full(SIZE, 7, np.uint8), np.zeros(SIZE, np.uint8)
    with glake.empty(SIZE, gpu) as block:
        transfer.copy(transfer.Raw(block.ptr, SIZE, gpu), sent).wait()
        transfer.gather(back, transfer.Blocks(block.ptr, SIZE // 4, 4, SIZE // 4, gpu)).wait()
    assert np.array_equal(sent, back)


def test_a_stream_takes_it(gpu: Device) -> None:
    host = np.zeros(SIZE, np.uint8)
    with glake.empty(SIZE, 1) as block:
        going = transfer.copy(block, host, stream=(gpu, 0))
        assert going.ordered
        going.stream_wait(0, gpu)
        going.stream_wait((gpu, 0))
        going.wait()


def test_plans_take_it(gpu: Device) -> None:
    plan = transfer.explain(dst=gpu, src="cpu", nbytes=SIZE, exclude=[gpu])
    assert (plan.dst, plan.src) == ("cuda:1", "cpu")
    pytest.importorskip("highspy")
    named = transfer.bound("dgx1v", dst="cuda:0", src="cuda:1", exclude=["cuda:1"])
    assert transfer.bound("dgx1v", dst=0, src=gpu, exclude=[gpu]) == named


def test_the_simulators_books_take_it(gpu: Device) -> None:
    with glake.empty(SIZE, 1):
        assert simcuda.ledger(gpu) == simcuda.ledger(1) != simcuda.ledger(0)


def test_what_is_no_gpu_is_refused_by_name() -> None:
    host = np.zeros(SIZE, np.uint8)
    with glake.empty(SIZE, 1) as block:
        with pytest.raises(InvalidArgument, match="^Raw: device 'gpu' is neither"):
            transfer.copy(transfer.Raw(block.ptr, SIZE, "gpu"), host)
        with pytest.raises(InvalidArgument, match="^Blocks: device 1.5 is neither"):
            transfer.gather(host, transfer.Blocks(block.ptr, SIZE, 1, SIZE, 1.5))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="the pair is .GPU, handle."):
            transfer.copy(block, host, stream=("gpu", 0))
        with pytest.raises(InvalidDevice, match="device None: a GPU is 0"):
            simcuda.ledger(None)  # type: ignore[arg-type]
        going = transfer.copy(block, host)
        for device in ("gpu", 1.5, -1):
            with pytest.raises(InvalidDevice, match="a GPU is 0"):
                going.stream_wait(0, device)  # type: ignore[arg-type]
        going.wait()
    for exclude in ("gpu", [8], [None], [1.5]):
        with pytest.raises(InvalidArgument, match="exclude .*: GPUs that may not relay"):
            transfer.explain(dst=0, src="cpu", nbytes=SIZE, exclude=exclude)  # type: ignore[arg-type]
    with pytest.raises(InvalidDevice, match="8: the platform has 8 GPUs"):
        transfer.explain(dst=8, src="cpu", nbytes=SIZE, platform="dgx1v")
    for place in (-1, True, 1.5):
        with pytest.raises(InvalidArgument, match="is no place"):
            transfer.explain(dst=place, src="cpu", nbytes=SIZE, platform="dgx1v")  # type: ignore[arg-type]
