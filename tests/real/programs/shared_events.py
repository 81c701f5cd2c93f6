"""An event that two processes have is recorded and waited for by both, again and again.

CUDA's manual: once an event has been opened by another process, "cudaEventRecord,
cudaEventSynchronize, cudaStreamWaitEvent and cudaEventQuery may be used in either process".
"""

import os
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 3


def copy(handle: bytes, tensor: torch.Tensor, told, tell) -> None:
    """Copies row 0 to row 1 on a stream of its own, behind what the other process has recorded."""
    event = torch.cuda.Event.from_ipc_handle(0, handle)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(ROUNDS):
            told.get()
            event.wait()
            # Copies move bytes in memory mode, in which no kernel computes.
            tensor[1].copy_(tensor[0])
            event.record()
            tell.put("recorded")


def main() -> None:
    os.environ["GLAKE_SIM_MACHINE"] = f"events-{os.getpid()}"
    context = mp.get_context("spawn")
    tell, told = context.SimpleQueue(), context.SimpleQueue()
    tensor = torch.zeros(2, 4, device="cuda")
    event = torch.cuda.Event(interprocess=True)
    handle = event.ipc_handle()
    child = context.Process(target=copy, args=(handle, tensor, tell, told))
    child.start()
    for i in range(ROUNDS):
        tensor[0].copy_(torch.full((4,), float(i + 1)).pin_memory(), non_blocking=True)
        event.record()
        tell.put("recorded")
        assert told.get() == "recorded"
        event.synchronize()
        assert tensor[1].tolist() == [i + 1.0] * 4, (i, tensor)
    child.join()
    assert child.exitcode == 0
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
