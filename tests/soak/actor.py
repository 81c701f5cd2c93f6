"""One process of cycles.py: uses glake on the simulator as a JSON description says, then ends.

Writes "ready" once it has memory, and a line that starts with "bad" for each fault. Blocks have
stamps in their first and last bytes. These show whether two blocks got the same memory.
"""

import atexit
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from glake import _C, errors, simcuda

KIB, MIB = 1 << 10, 1 << 20


def say(line: str) -> None:
    os.write(1, (line + "\n").encode())


class Churn:
    """Random allocations and frees with stamps."""

    def __init__(self, seed: int, devices: int = 1) -> None:
        self.random = random.Random(seed)
        self.devices = devices
        self.blocks: list[tuple[int, int, int]] = []

    def step(self) -> None:
        if self.blocks and self.random.random() < 0.45:
            self.free(self.random.randrange(len(self.blocks)))
            return
        size = self.random.choice(
            [self.random.randint(1, 64 * KIB), self.random.randint(1, 6 * MIB)]
        )
        try:
            pointer = _C.malloc(size, self.random.randrange(self.devices), 0)
        except errors.OutOfMemory:
            while len(self.blocks) > 2:
                self.free(0)
            return
        stamp = self.random.randint(1, 255)
        ctypes.memset(pointer, stamp, 1)
        ctypes.memset(pointer + size - 1, stamp, 1)
        self.blocks.append((pointer, size, stamp))

    def free(self, index: int) -> None:
        pointer, size, stamp = self.blocks.pop(index)
        ends = ctypes.string_at(pointer, 1) + ctypes.string_at(pointer + size - 1, 1)
        if ends != bytes([stamp, stamp]):
            say(f"bad: a block stamped {stamp} holds {ends!r}")
        _C.free(pointer)

    def free_all(self) -> None:
        while self.blocks:
            self.free(0)


def watch_the_end(witness: str) -> None:
    """Counts driver calls after the end of Python's work. witness.c prints "bad" if there are
    any."""
    library = ctypes.CDLL(witness)
    count = ctypes.cast(simcuda._library().simcuda_calls, ctypes.c_void_p)
    atexit.register(lambda: library.witness_begin(count))


def in_child(use: str, used_before: bool) -> None:
    """The work of a forked child. Without glake it ends at once. With glake its calls are refused,
    or work if the parent had not used glake."""
    if use == "glake" and used_before:
        for call in (lambda: _C.malloc(1000), lambda: _C.stats(0), lambda: _C.empty_cache(0)):
            try:
                call()
                say("bad: glake worked in a forked child")
            except errors.Forked:
                pass
    elif use == "glake":
        churn = Churn(1)
        for _ in range(20):
            churn.step()
        churn.free_all()
        _C.check(0)


def fork(how: str, use: str, used_before: bool, patience: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            in_child(use, used_before)
        except BaseException as error:
            say(f"bad: in a forked child: {error!r}")
        if how == "_exit":
            os._exit(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    ends = time.monotonic() + patience
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > ends:
            say("bad: a forked child hangs")
            os.kill(child, signal.SIGUSR1)
            time.sleep(1)  # time to print its stack
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.002)


def use_torch(seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Linear(256, 256)
    for size in range(1, 20):
        model(torch.randn(size * 10, 256)).square().mean().backward()


def run(plan: dict[str, Any]) -> None:
    if plan.get("witness"):
        watch_the_end(plan["witness"])
    fork_at = plan["fork"]
    if fork_at == "before":
        fork(plan["fork_end"], plan["fork_use"], False, plan["patience"])
    if plan["torch"]:
        use_torch(plan["seed"])
    churn = Churn(plan["seed"], plan["devices"])
    for _ in range(plan["operations"]):
        churn.step()
    say("ready")
    stop = threading.Event()

    def work(seed: int) -> None:
        mine = Churn(seed, plan["devices"])
        while not stop.is_set():
            mine.step()
        mine.free_all()

    daemon = plan["daemon"]
    threads = [
        threading.Thread(target=work, args=(plan["seed"] * 7 + t,), daemon=daemon)
        for t in range(plan["threads"])
    ]
    for thread in threads:
        thread.start()
    if fork_at == "amid":
        fork(plan["fork_end"], plan["fork_use"], True, plan["patience"])
    for _ in range(plan["operations"]):
        churn.step()
    if plan["end"] == "wait":  # works until it is killed
        while True:
            churn.step()
    if not daemon:
        stop.set()
        for thread in threads:
            thread.join()
    if plan["tidy"]:
        churn.free_all()
        _C.check(0)
    if plan["end"] == "exception":
        raise KeyError("on purpose")
    if plan["end"] == "_exit":
        os._exit(0)
    if plan["end"] == "shutdown" and plan["tidy"] and not daemon:
        _C.shutdown()


def serve() -> None:
    """The work of a process that stays. Its input is lines: "work", "used" (asks for the bytes in
    use on the machine), "bye"."""
    churn = Churn(os.getpid())
    for line in sys.stdin:
        if line == "work\n":
            for _ in range(30):
                churn.step()
            churn.free_all()
            _C.check(0)
            _C.empty_cache(0)
            say("done")
        elif line == "used\n":
            say(str(simcuda.ledger(0)["used_bytes"]))
        elif line == "bye\n":
            _C.shutdown()
            say(str(simcuda.violations()))
            break


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # cycles.py asks a process that hangs where it is
    if sys.argv[1] == "serve":
        serve()
    else:
        run(json.loads(sys.argv[1]))
