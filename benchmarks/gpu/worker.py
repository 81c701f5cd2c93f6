"""One process under one allocator. It takes orders as JSON lines on stdin and answers on stdout.

side_by_side.py starts one for each allocator and lets one at a time work, so that their steps
alternate. The environment chooses the allocator; nothing here knows it.

Orders: {"do": "latency", "sizes", "times"} | {"do": "limit", "bytes"} | {"do": "setup"} |
{"do": "steps", "batch", "lengths"} | {"do": "drop"} | and, of patterns.py, {"do": "allocator",
"kind", "limit"} | {"do": "pattern", "which", "budget"} | {"do": "mixed", "threads", "seconds"}. The
end of stdin ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pattern_jobs
import torch
import torch.utils.deterministic
from model import GPT, VOCABULARY, Shape, next_token_loss

HERE = Path(__file__).resolve().parent

SHAPES = {
    # Wide, so that the GPU and not Python takes the time of a step.
    "real": Shape(width=2048, layers=12, heads=16, length=512),
    "tiny": Shape(width=32, layers=2, heads=2, length=64),
}
SEED = 11


class Worker:
    """The job's state, and one method for each order."""

    def __init__(self, device: str, shape: str) -> None:
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.shape = SHAPES[shape]
        self.model: torch.nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.free_before = 0
        if self.cuda:
            torch.use_deterministic_algorithms(True)  # with warn_only attention would not be
            torch.utils.deterministic.fill_uninitialized_memory = False  # its time must not count
            # Only flash attention has a backward pass that can be made deterministic.
            torch.backends.cuda.enable_mem_efficient_sdp(False)
            torch.backends.cuda.enable_cudnn_sdp(False)
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize()

    def hello(self) -> dict[str, Any]:
        """The device and versions of this process."""
        told: dict[str, Any] = {"torch": torch.__version__, "device": str(self.device)}
        if self.cuda:
            told["device"] = torch.cuda.get_device_name()
            told["free_bytes"], told["total_bytes"] = torch.cuda.mem_get_info()
        try:
            told["backend"] = torch.cuda.get_allocator_backend() if self.cuda else None
            told["settings"] = torch.cuda.memory._snapshot()["allocator_settings"]
        except (RuntimeError, KeyError, AttributeError):
            told["settings"] = None
        if os.environ.get("GLAKE_ALLOCATOR", "0") != "0":
            from glake.allocator.torch import mode

            told["glake"] = mode()
        return told

    def limit(self, bytes: int | None) -> dict[str, Any]:
        """Allows this process so many bytes of device memory (None: all of it)."""
        if self.cuda:
            total = torch.cuda.mem_get_info()[1]
            fraction = 1.0 if bytes is None else min(1.0, bytes / total)
            torch.cuda.set_per_process_memory_fraction(fraction)
        return {}

    def drop(self) -> dict[str, Any]:
        """Forgets the model and gives all cached memory back."""
        self.model = self.optimizer = None
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return {}

    def setup(self) -> dict[str, Any]:
        """Makes a fresh model and optimizer, and resets the statistics."""
        self.drop()
        torch.manual_seed(SEED)
        if self.cuda:
            self.free_before = torch.cuda.mem_get_info()[0]
            with contextlib.suppress(RuntimeError):  # if the allocator has none
                torch.cuda.reset_peak_memory_stats()
        try:
            kind = torch.bfloat16 if self.cuda else torch.float32
            self.model = GPT(self.shape).to(device=self.device, dtype=kind)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        except torch.OutOfMemoryError as error:
            return {"oom": {"step": None, "text": str(error)[:300]}}
        torch.manual_seed(SEED + 1)
        return {"parameters": sum(each.numel() for each in self.model.parameters())}

    def steps(self, batch: int, lengths: list[int]) -> dict[str, Any]:
        """Trains one step at each length. Stops at the first that does not fit."""
        calls = _driver_calls()
        losses: list[torch.Tensor] = []
        marks: list[Any] = [self._mark()]
        oom = None
        for index, length in enumerate(lengths):
            try:
                losses.append(self._step(batch, length, index))
            except torch.OutOfMemoryError as error:
                oom = {"step": index, "text": str(error)[:300]}
                break
            marks.append(self._mark())
        if self.cuda:
            torch.cuda.synchronize()
        told = {
            "ms": [self._between(a, b) for a, b in zip(marks, marks[1:], strict=False)],
            "losses": [loss.item().hex() for loss in losses],
            "oom": oom,
            "driver_calls": None if calls is None else (_driver_calls() or 0) - calls,
            **self._memory(),
        }
        del losses
        if oom is not None:
            self.drop()
        return told

    def _step(self, batch: int, length: int, index: int) -> torch.Tensor:
        assert self.model is not None and self.optimizer is not None
        numbers = torch.Generator().manual_seed(1000 * length + index)
        tokens = torch.randint(VOCABULARY, (batch, length + 1), generator=numbers)
        tokens = tokens.to(self.device, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first: Any, second: Any) -> float:
        return first.elapsed_time(second) if self.cuda else (second - first) * 1e3

    def _memory(self) -> dict[str, Any]:
        """Peaks in bytes since setup(), and the device memory it holds. None if unknown."""
        names = {
            "peak_requested_bytes": "requested_bytes.all.peak",
            "peak_allocated_bytes": "allocated_bytes.all.peak",
            "peak_reserved_bytes": "reserved_bytes.all.peak",
            "alloc_retries": "num_alloc_retries",
        }
        found: dict[str, Any] = {}
        try:
            if self.cuda:
                found = dict(torch.cuda.memory_stats())
            elif os.environ.get("GLAKE_ALLOCATOR", "0") != "0":
                import glake

                found = glake.stats()
        except RuntimeError as error:
            found = {"error": str(error)}
        told = {name: found.get(key) for name, key in names.items()}
        if self.cuda:
            told["held_bytes"] = self.free_before - torch.cuda.mem_get_info()[0]
        return told

    def latency(self, sizes: list[int], times: int) -> dict[str, Any]:
        """Nanoseconds of an allocation and its free, by size: through Python, and from C++."""
        rows = []
        native = _loop()
        for size in sizes:
            python = []
            for _ in range(7):
                start = time.perf_counter_ns()
                for _ in range(times):
                    torch.empty(size, dtype=torch.uint8, device=self.device)
                python.append((time.perf_counter_ns() - start) / times)
            cpp = [native.pair_ns(int(self.cuda), size, 16, 4 * times) for _ in range(7)]
            rows.append(
                {
                    "bytes": size,
                    "python_ns": statistics.median(python[1:]),
                    "cpp_ns": statistics.median(cpp[1:]),
                }
            )
        return {"rows": rows}

    def allocator(self, kind: str, limit: int) -> dict[str, Any]:
        """Chooses the source of pattern()'s blocks (pattern_jobs.Taker), and its limit."""
        self.taker = pattern_jobs.Taker(kind, str(self.device), limit)
        if kind == "torch":
            self.limit(limit)
        return {}

    def pattern(self, which: str, budget: int) -> dict[str, Any]:
        """Plays one of pattern_jobs from empty caches, once to warm up and once timed.

        `held_per_live` is the device memory held then, over the most bytes live at once.
        """
        made = pattern_jobs.operations(which, budget)
        self.drop()
        self.taker.empty()
        before = torch.cuda.mem_get_info()[0] if self.cuda else 0
        told = pattern_jobs.play(made, self.taker.take)
        if told["oom"] is None:
            told = pattern_jobs.play(made, self.taker.take)
        if self.cuda and self.taker.shrinks:
            torch.cuda.synchronize()
            told["held_per_live"] = (before - torch.cuda.mem_get_info()[0]) / budget
        return told

    def mixed(self, threads: int, seconds: float) -> dict[str, Any]:
        """Pairs of allocation and free per second, of mixed sizes, by C++ threads."""
        rate = _loop().mixed_per_s(int(self.cuda), 8 << 20, 64, threads, seconds)
        return {"pairs_per_s": rate if rate >= 0 else None}


def _driver_calls() -> int | None:
    """Memory calls that glake made to the driver. None under another allocator."""
    if os.environ.get("GLAKE_ALLOCATOR", "0") == "0":
        return None
    import glake

    return int(glake.stats()["glake.driver_calls"])


@functools.cache
def _loop() -> ctypes.CDLL:
    """torch_loop/loop.cc, compiled against the installed torch."""
    root = Path(torch.__file__).resolve().parent
    minor = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "loop.so")
        command = [
            *os.environ.get("CXX", "g++").split(),
            f"-std=c++{20 if minor >= (2, 14) else 17}",
            *("-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *("-isystem", str(root / "include")),
            str(HERE / "torch_loop" / "loop.cc"),
            *(f"-L{root / 'lib'}", "-lc10", "-pthread"),
            *("-o", str(made)),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"torch_loop/loop.cc did not compile: {done.stderr[-2000:]}")
        library = ctypes.CDLL(str(made))
    library.pair_ns.restype = ctypes.c_double
    library.pair_ns.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    library.mixed_per_s.restype = ctypes.c_double
    library.mixed_per_s.argtypes = [*library.pair_ns.argtypes, ctypes.c_double]
    return library


def main() -> None:
    """worker.py DEVICE SHAPE"""
    worker = Worker(sys.argv[1], sys.argv[2])
    print(json.dumps({"ok": True, **worker.hello()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            told = getattr(worker, order.pop("do"))(**order)
            print(json.dumps({"ok": True, **told}), flush=True)
        except Exception as error:  # the coordinator is told, and goes on with others
            text = f"{type(error).__name__}: {error}"[:1000]
            print(json.dumps({"ok": False, "error": text}), flush=True)


if __name__ == "__main__":
    main()
