"""Starts ranks that see one GPU each, for tests that lend GPUs between them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glake.transfer.relay import directory, starting

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 240  # seconds, on a busy machine


class Rank:
    """A process of rank_worker.py that sees one GPU."""

    def __init__(self, runtime: Path, machine: str, gpu: int, pace: int) -> None:
        self.gpu, self.errors = gpu, runtime / f"errors-{gpu}"
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        more = {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": str(runtime),
            "GLAKE_DRIVER": "sim:dgx1v",
            "GLAKE_SIM_MEMORY": "128MiB",
            "GLAKE_SIM_MACHINE": machine,
            "GLAKE_SIM_PACE": str(pace),
            "GLAKE_SIM_VISIBLE_DEVICES": "1",
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "LOCAL_RANK": str(gpu),
            "LOCAL_WORLD_SIZE": "2",
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "rank_worker.py")],
                env={**clean, **more},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, what: str) -> dict[str, Any]:
        self.tell(what)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        answer: dict[str, Any] = json.loads(line)
        assert answer["wrong"] == 0
        return answer

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits for the first state for which `holds` is true."""
        end = time.monotonic() + PATIENCE
        while not holds(state := self.ask("state")):
            assert time.monotonic() < end, (state, self.errors.read_text())
        return state


@contextlib.contextmanager
def two_ranks(runtime: Path, pace: int) -> Iterator[list[Rank]]:
    """Ranks with GPU 2 and GPU 5 of one simulated machine, whose clock is `pace` times slower. They
    and their relay service end with the context."""
    machine = f"ranks-{uuid.uuid4().hex[:12]}"
    started = [Rank(runtime, machine, gpu, pace) for gpu in (2, 5)]
    try:
        yield started
    finally:
        for rank in started:
            rank.process.kill()
            rank.process.wait()
            for stream in (rank.process.stdin, rank.process.stdout):
                if stream is not None:
                    stream.close()
        for socket in runtime.glob("glake-relay/*.sock"):
            books = starting.ask(directory.Files(socket.parent, socket.stem), "status")
            if books is not None:
                os.kill(books.books["pid"], signal.SIGTERM)


def books_of(runtime: Path) -> dict[str, Any]:
    (socket,) = runtime.glob("glake-relay/*.sock")
    found = starting.ask(directory.Files(socket.parent, socket.stem), "status")
    assert found is not None
    return found.books
