"""Lets one process work hard for minutes or hours, and watches figures that must not grow.

    tests/soak/soak.py [--minutes 5] [--seed N] [--limit 2GiB] [--bytes] [--growth 512]

Training jobs follow each other on a simulated device. Their steps have changing shapes. A thread
loads batches on its own stream, and one reduces gradients on another stream. Evaluations run in
threads that end. Some jobs run out of memory, and some driver calls fail. After every job the books
must show no block. After a warm-up of a quarter of the time, at least a minute, resident memory may
grow by at most --growth KiB a minute. --bytes puts real memory behind the device (then use a small
--limit). Exits non-zero on a finding.
"""

import argparse
import ctypes
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.progress import Progress

from glake import _C, errors, simcuda

KIB, MIB = 1 << 10, 1 << 20
SYMBOLS = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"]
SYMBOLS += ["cuEventRecord", "cuStreamWaitEvent", "cuEventQuery"]
WARM_UP = 60  # seconds, at least, until caches, pools and the C library's arenas have their size
M_ARENA_MAX = -8  # for mallopt: an arena for each thread would look like growth
Block = tuple[int, int]  # address, bytes


def resident() -> int:
    """This process's resident memory in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


class Device:
    """Simulated streams, and allocation that checks whether a refusal is allowed."""

    def __init__(self, limit: str, real: bool, seed: int) -> None:
        for key, value in {"memory": limit, "devices": 1, "phantom": int(not real)}.items():
            simcuda.configure(key, value)
        simcuda.configure("seed", seed)
        _C.configure("driver", "sim")
        _C.free(_C.malloc(1))
        self.driver = ctypes.CDLL(_C.driver_path())
        self.context = ctypes.c_void_p()
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        self.streams = [0]
        for _ in range(5):
            stream = ctypes.c_void_p()
            assert self.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
            self.streams.append(stream.value or 0)
        self.armed = False
        self.counts: Counter[str] = Counter()

    def get(self, size: int, stream: int) -> Block | None:
        try:
            block = (_C.malloc(size, 0, self.streams[stream]), size)
        except errors.OutOfMemory:
            self.counts["refusals"] += 1
            return None
        except errors.DriverError:
            if not self.armed:
                raise
            self.counts["driver errors"] += 1
            return None
        self.counts["allocations"] += 1
        return block

    def work(self, block: Block, stream: int) -> None:
        """Writes the block on a stream."""
        value = ctypes.c_uint64(block[0])
        size = ctypes.c_size_t(block[1])
        handle = ctypes.c_void_p(self.streams[stream])
        assert self.driver.cuMemsetD8Async(value, 1, size, handle) == 0

    def record(self, block: Block, stream: int) -> None:
        _C.record_stream(block[0], self.streams[stream])

    def free(self, blocks: list[Block]) -> None:
        while blocks:
            _C.free(blocks.pop()[0])


class Worker(threading.Thread):
    """Runs the tasks in its queue until None; keeps the first exception."""

    def __init__(self, device: Device) -> None:
        super().__init__(daemon=True)
        self.tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(4)
        self.device = device
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self.device.driver.cuCtxPushCurrent_v2(self.device.context)
        while (task := self.tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self.error = self.error or error
            self.tasks.task_done()

    def end(self) -> None:
        self.tasks.put(None)
        self.join()


class Job:
    """The training of one model. Its weights stay, and its steps change shape now and then."""

    def __init__(self, device: Device, dice: random.Random, share: float) -> None:
        self.device, self.dice = device, dice
        self.layers = dice.randint(4, 24)
        limit = _C.stats(0)["glake.limit_bytes"]
        # Weights and gradients take a third of what the job is to use, activations the rest.
        self.width = max(4 * KIB, int(limit * share / self.layers / 6))
        self.kept: list[Block] = []
        self.loader, self.reducer = Worker(device), Worker(device)

    def need(self, size: int, stream: int, into: list[Block]) -> bool:
        block = self.device.get(max(1, size), stream)
        if block is None:
            return False
        into.append(block)
        return True

    def run(self, steps: int) -> None:
        for _ in range(self.layers * 2):
            if not self.need(self.width, 0, self.kept):
                break
        scale = 1.0
        for step in range(steps):
            if step % 10 == 0:
                scale = self.dice.uniform(0.3, 1.0)
            self.step(scale)
            _C.mark_step(0)
            if self.dice.random() < 0.02:
                self.evaluate()
            if self.dice.random() < 0.01:
                self.empty_cache()
        for worker in (self.loader, self.reducer):
            worker.end()
            if worker.error is not None:
                raise worker.error
        self.device.free(self.kept)

    def step(self, scale: float) -> None:
        device = self.device
        batches: queue.Queue[Block | None] = queue.Queue()
        size = int(self.width * scale)
        self.loader.tasks.put(lambda: batches.put(device.get(max(1, size // 3), 1)))
        activations: list[Block] = []
        for _ in range(self.layers):
            scratch: list[Block] = []
            for part in (1.0, 0.4, 0.02, 0.001):
                keep = activations if part > 0.1 else scratch
                self.need(int(size * part * self.dice.uniform(0.9, 1.0)), 0, keep)
            for block in activations[-1:]:
                device.work(block, 0)
            device.free(scratch)
        batch = batches.get()
        if batch is not None:
            device.work(batch, 1)
            device.record(batch, 0)
            _C.free(batch[0])
        self.backward(activations, size)

    def backward(self, activations: list[Block], size: int) -> None:
        """Frees activations, the last first, each for a gradient that another stream reduces."""
        device = self.device
        while activations:
            device.free([activations.pop()])
            gradient = device.get(max(1, size // 8), 0)
            if gradient is not None:
                device.work(gradient, 0)
                self.reducer.tasks.put(lambda block=gradient: self.reduce(block))  # type: ignore[misc]
        self.reducer.tasks.join()

    def reduce(self, gradient: Block) -> None:
        bucket = self.device.get(gradient[1], 2)
        self.device.record(gradient, 2)
        if bucket is not None:
            self.device.work(bucket, 2)
            self.device.free([bucket])
        self.device.free([gradient])

    def evaluate(self) -> None:
        """Runs forward passes in a thread that ends, on one of the other streams."""

        def forward() -> None:
            blocks: list[Block] = []
            for _ in range(self.layers):
                self.need(self.width // 3, stream, blocks)
                self.need(self.dice.randint(1, 8 * KIB), stream, blocks)
            self.device.free(blocks)

        stream = self.dice.randint(3, 5)
        worker = Worker(self.device)
        worker.tasks.put(forward)
        worker.end()
        if worker.error is not None:
            raise worker.error

    def empty_cache(self) -> None:
        try:
            _C.empty_cache(0)
        except errors.DriverError:
            if not self.device.armed:
                raise


class Soak:
    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.dice = random.Random(seed)
        self.findings: list[str] = []
        self.samples: list[tuple[float, int]] = []
        self.jobs = 0

    def job(self) -> None:
        self.jobs += 1
        # One job in five wants more than there is, and one in five meets driver calls that fail.
        share = 1.4 if self.jobs % 5 == 4 else self.dice.uniform(0.5, 0.9)
        self.device.armed = self.jobs % 5 == 2
        if self.device.armed:
            k, times = self.dice.randint(1, 200), self.dice.choice([1, 2, 5])
            simcuda.fail(self.dice.choice(SYMBOLS), k, self.dice.choice([2, 999]), times)
        Job(self.device, self.dice, share).run(self.dice.randint(10, 60))
        simcuda.fail(None)
        self.device.armed = False
        self.check()

    def check(self) -> None:
        _C.check(0)
        stats = _C.stats(0)
        for key in ("allocation.all.current", "allocated_bytes.all.current"):
            if stats[key] != 0:
                self.findings.append(f"job {self.jobs}: {key} is {stats[key]} with no block held")
        if self.jobs % 3 == 0:
            _C.empty_cache(0)
            books = simcuda.ledger(0)
            if books["used_bytes"] != _C.stats(0)["glake.physical_bytes"]:
                self.findings.append(f"job {self.jobs}: the driver holds {books}")
        if wrong := simcuda.violations():
            self.findings.append(f"job {self.jobs}: {wrong[:3]}")

    def slope(self) -> float:
        """KiB a minute, by least squares over the samples."""
        n = len(self.samples)
        mean_t = sum(t for t, _ in self.samples) / n
        mean_r = sum(r for _, r in self.samples) / n
        above = sum((t - mean_t) * (r - mean_r) for t, r in self.samples)
        below = sum((t - mean_t) ** 2 for t, _ in self.samples)
        return 60 * above / below if below else 0.0

    def run(self, seconds: float) -> None:
        begin = time.monotonic()
        with Progress(disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("soak", total=seconds)
            while (spent := time.monotonic() - begin) < seconds and not self.findings:
                self.job()
                progress.update(bar, completed=spent)
                if spent > max(seconds / 4, WARM_UP):
                    self.samples.append((spent, resident()))

    def finish(self) -> None:
        device = self.device
        _C.shutdown()
        for stream in device.streams[1:]:
            assert device.driver.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0
        books = simcuda.ledger(0)
        for key in ("reservations", "handles", "mapped_granules", "used_bytes", "events"):
            if books[key] != 0:
                self.findings.append(f"after shutdown, {key} is {books[key]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--growth", type=float, default=512)
    options = parser.parse_args()
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    soak = Soak(Device(options.limit, options.bytes, options.seed), options.seed)
    soak.run(options.minutes * 60)
    if not soak.findings:
        soak.finish()
    growth = soak.slope() if len(soak.samples) >= 10 else 0.0
    if growth > options.growth:
        soak.findings.append(f"resident memory grows by {growth:.0f} KiB a minute")
    for finding in soak.findings:
        print(f"FINDING: {finding}")
    counts = ", ".join(f"{n} {what}" for what, n in soak.device.counts.items())
    print(f"{soak.jobs} jobs, {counts}; {growth:+.0f} KiB resident a minute: ", end="")
    print(f"{len(soak.findings)} findings")
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())
