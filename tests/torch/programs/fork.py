"""A child is forked while glake serves torch. The parent goes on, and both check every byte."""

import os
import sys

import torch

import glake
from glake.allocator import emulation


def stitched() -> torch.Tensor:
    """A tensor over granules that are not neighbours: as large as many small holes together."""
    small = [torch.zeros(4 << 20, dtype=torch.uint8) for _ in range(24)]
    del small[::2]
    large = torch.full((9 << 20,), 15, dtype=torch.int32)
    assert glake.stats()["glake.stitches"] > 0
    return large


def stamps() -> list[torch.Tensor]:
    sizes = (1, 500, 4000, 100_000, 3_000_000)
    return [torch.full((size,), 10 + i, dtype=torch.int32) for i, size in enumerate(sizes)]


def correct(tensors: list[torch.Tensor], first: int) -> bool:
    return all(bool((tensor == first + i).all()) for i, tensor in enumerate(tensors))


def child(tensors: list[torch.Tensor], dropped: torch.Tensor, ready: int, go: int) -> None:
    assert os.read(go, 1)  # by now the parent has reused and overwritten all it could
    assert correct(tensors, 10) and bool((dropped == 5).all())
    for tensor in tensors:
        tensor += 100  # in the child only
    assert correct(tensors, 110)
    try:
        glake.stats()
        raise SystemExit("glake served a forked child")
    except glake.Forked as error:
        assert "fork" in str(error)
    new = [torch.ones(100_000) for _ in range(20)]
    now = emulation.counters()
    assert now.state == "forked" and now.torch_bytes >= 20 * 400_000
    tensors.pop()  # frees a block of the parent's, which keeps it
    new += [tensor.resize_(2 * tensor.numel()) for tensor in tensors[:2]]
    model = torch.nn.Linear(100, 100)
    model(torch.ones(5, 100)).sum().backward()
    grandchild = os.fork()
    if grandchild == 0:
        tensors[2].zero_()
        os._exit(0)
    assert os.waitpid(grandchild, 0)[1] == 0
    assert bool((tensors[2] == 112).all())
    assert emulation.counters().failed_frees == 0
    os.write(ready, b"child ok\n")


def main() -> None:
    tensors = [*stamps(), stitched()]
    live = glake.stats()["requested_bytes.all.current"]
    dropped = torch.full((2_000_000,), 5)
    reading, writing = os.pipe()
    go_reading, go_writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child(tensors, dropped, writing, go_reading)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    where = dropped.data_ptr()
    del dropped
    reused = torch.full((2_000_000,), 6)
    assert reused.data_ptr() == where  # else the child's copy is not tested
    for tensor in tensors:
        tensor += 50
    os.write(go_writing, b"g")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    print(os.read(reading, 100).decode(), end="")
    assert correct(tensors, 60) and bool((reused == 6).all())
    del reused
    assert glake.stats()["requested_bytes.all.current"] == live
    more = stamps()
    assert correct(more, 10) and correct(tensors, 60)
    assert emulation.counters().state == "glake"
    print("parent ok")


main()
