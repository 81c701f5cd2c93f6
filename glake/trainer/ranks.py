"""The ranks of a job (torchrun's environment, or one process alone), and the start time of
processes."""

from __future__ import annotations

import datetime
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from glake.errors import RankLost

dist: Any = distributed  # untyped: the module does not declare all that it exports
_UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"
_JOBS = itertools.count()  # numbers the jobs of this process
_GONE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out|timeout|socket|gloo|store->get|NCCL",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ranks:
    """This process as one of the job's ranks."""

    rank: int
    count: int
    device: Any  # torch.device
    host: Any  # a gloo group of all ranks, for values in host memory
    checkpoints: Any  # a second gloo group, for the thread that writes checkpoints
    agent: int  # the process that started this one

    def total(self, value: int) -> int:
        """The sum over ranks, on the host. When it returns, every rank has called it."""
        sum_ = torch.tensor(value)
        dist.all_reduce(sum_, group=self.host)
        return int(sum_)

    def check(self) -> None:
        """Raises RankLost if torchrun, which started this rank, is gone. Nothing would restart the
        rank."""
        if _UNDER_TORCHRUN in os.environ and os.getppid() != self.agent:
            raise RankLost(
                "torchrun was killed: its ranks end too, and the same command goes on from the "
                "newest whole state, if checkpoint.folder is set"
            )


@contextmanager
def joined(timeout_s: float) -> Iterator[Ranks]:
    """Joins the process group, and leaves it at the end. Raises RankLost if a rank does not
    join."""
    agent = os.getppid()
    limit = datetime.timedelta(seconds=timeout_s)
    local, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if here_of(count) == count:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    with lost_ranks():
        store, rank = _store(limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
        host, checkpoints = (dist.new_group(backend="gloo", timeout=limit) for _ in range(2))
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device, host, checkpoints, agent)
    finally:
        dist.destroy_process_group()


def here_of(count: int) -> int:
    """How many of `count` ranks are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(count)))


def _store(limit: datetime.timedelta) -> tuple[Any, int]:
    """Returns (a store through which ranks find each other, this rank). A restart has its own names
    in torchrun's store, and so has each further job of the same processes. Under the old names
    ranks would find the addresses of ranks that are gone, and wait."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0
    store, rank, _ = next(dist.rendezvous("env://", timeout=limit))
    return dist.PrefixStore(f"glake-trainer/{restarts()}/{next(_JOBS)}", store), rank


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Turns a failed collective into RankLost, which says what to do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        if isinstance(error, RankLost) or not _GONE.search(text) or "out of memory" in text.lower():
            raise
        raise RankLost(
            f"another rank is gone or does not answer ({text.splitlines()[0][:200]}). Under "
            "`torchrun --max-restarts N` the job starts again by itself: where checkpoint.folder "
            "is set from its newest whole checkpoint, else from the first step. A rank that is "
            "only slow needs a larger timeout_s"
        ) from error


def restarts() -> int:
    """How often torchrun has started this job again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def job() -> str:
    """A name for the process that started this one (torchrun). No other process has the name until
    the machine restarts."""
    return f"{os.getppid()}-{ticks_at_start(os.getppid())}"


def warn_of_restarts(folder: str, say: Callable[[str], None]) -> None:
    """Warns if torchrun restarts a job that keeps nothing."""
    if not folder and (restarts() or int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))):
        start = "this one starts" if restarts() else "it would start"
        say(
            "no checkpoint.folder is set, so a restart has no state to go on from: "
            f"{start} from the beginning"
        )


def ticks_at_start(pid: int | str = "self") -> int | None:
    """The start time of a process, in the kernel's ticks since the machine started. None: there is
    no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def process_began() -> float:
    """The start time of this process, in seconds since the epoch."""
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + (ticks_at_start() or 0) / os.sysconf("SC_CLK_TCK")
