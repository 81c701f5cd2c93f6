"""Measures platforms, each in its own process, at most two at a time."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

from glake import children, config
from glake.errors import BenchFailed, InvalidArgument, InvalidOption
from glake.platform_file import load_platforms
from glake.platforms import Platform, file_text
from glake.transfer import bounds
from glake.transfer.bench.cases import cases
from glake.transfer.bench.goals import missed, part_of_bound
from glake.transfer.bench.machines import machines

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (256 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
MOST_COPY = 16 * GIB
MOST_MADE = 1000
COMPLETIONS = ("polled", "instant")
ORDERS = ("enqueued", "held")
CALL_LOCKS = ("context", "none")
_AT_ONCE = 2
_SILENT_S: float = 300  # seconds: a child that sends no row for so long counts as hanging
_INSIDE = "platform"  # the platform's name in the child's file; its own name may be any text

Row = dict[str, Any]
Progress = Callable[[str, int, int], object]


LEAST_RATE = 1e-3  # GB/s of a link; over slower ones copies take too long to measure


def platforms_of(given: str) -> dict[str, Platform]:
    """The platforms by name, from "all", "made:COUNT", a preset's name, or a platforms file.

    Raises InvalidOption for an unknown name, and lists the presets. Raises InvalidPlatform, which
    is an InvalidOption, for a file, and names the wrong field.
    """
    if given.startswith("made:"):
        return _made(given)
    presets = load_platforms()
    if given == "all":
        return presets
    if given in presets:
        return {given: presets[given]}
    if os.sep in given or given.endswith(".json") or Path(given).exists():
        return load_platforms(given)
    raise InvalidOption(
        f"no platform {given!r}: give all, a platforms file, or one of {', '.join(presets)}"
    )


def _made(given: str) -> dict[str, Platform]:
    text = given.removeprefix("made:")
    if not text.isdecimal() or not 0 < int(text) <= MOST_MADE:
        raise InvalidOption(
            f"platform {given!r}: give made:COUNT, of 1 to {MOST_MADE} made-up machines"
        )
    return machines(int(text))


def sizes_of(texts: Sequence[str]) -> list[int]:
    """Bytes from "256KiB", "1GiB" or "4MiB,16MiB", ascending. SIZES if none are given.

    Raises InvalidOption for a text that is no size, and for a size that no copy has.
    """
    found = set()
    for text in (part.strip() for each in texts for part in each.split(",")):
        try:
            size = config.parse_bytes(text)
        except ValueError as error:
            raise InvalidOption(f'size {text!r}: {error}; give bytes ("256KiB", "1GiB")') from error
        if size > MOST_COPY:
            raise InvalidOption(f"size {text!r}: more than {MOST_COPY // GIB}GiB")
        found.add(size)
    return sorted(found) or list(SIZES)


def measure(
    platforms: Mapping[str, Platform],
    sizes: Sequence[int] = SIZES,
    *,
    pages: bool = False,
    completion: str = "polled",
    order: str = "enqueued",
    call_lock: str = "context",
    transfers: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Row]:
    """The rows of every platform, transfer, place of host memory and size, in this order.

    Args:
        platforms: by name, such as `platforms_of` gives.
        sizes: of each copy, in bytes.
        pages: measure host memory that changes socket every page, too.
        completion: how a thread learns that copies are done, one of COMPLETIONS. "polled": it asks
            and sleeps, as it must on a GPU, and both take time. "instant": it is woken.
        order: the option copy_order, one of ORDERS. With "enqueued", calls that enqueue work take
            their time on the clock, in every thread. Otherwise the time of the caller's calls is
            added.
        call_lock: which calls of other threads such a call waits for, one of CALL_LOCKS: those into
            the same context, or none.
        transfers: patterns of the transfers to measure ("h2d*"); none: all.
        progress: called with (platform, rows done, all rows), from several threads.

    Rates are GB/s (1e9 bytes a second). docs/transfer-bench.md explains the fields. Raises
    InvalidArgument, also for links below LEAST_RATE. Raises BenchFailed if a child fails, and
    PackageMissing without HiGHS.
    """
    if not platforms or not sizes or not all(0 < size <= MOST_COPY for size in sizes):
        raise InvalidArgument(
            f"{len(platforms)} platforms, sizes {list(sizes)}: give one of each at least, sizes "
            f"from 1 to {MOST_COPY}"
        )
    for what, given, known in (
        ("completion", completion, COMPLETIONS),
        ("order", order, ORDERS),
        ("call_lock", call_lock, CALL_LOCKS),
    ):
        if given not in known:
            raise InvalidArgument(f"{what} {given!r}: give one of {', '.join(known)}")
    for name, platform in platforms.items():
        _require_rates(name, platform)
    _require_transfers(transfers, platforms.values())
    bounds.require_solver()
    settings = {"SIM_COMPLETION": completion, "COPY_ORDER": order, "SIM_CALL_LOCK": call_lock}
    request = {"sizes": sorted(set(sizes)), "pages": pages, "transfers": list(transfers)}
    children = [_Child(name, each, request, settings) for name, each in platforms.items()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = [pool.submit(child.run, progress or (lambda *_: None)) for child in children]
        try:
            for run in as_completed(runs):
                run.result()
        except BaseException:
            for child in children:
                child.stop()
            raise
    return [row for run in runs for row in run.result()]


def _require_rates(name: str, platform: Platform) -> None:
    limits = {f"link {each.name}": each.gb_per_s for each in platform.edges}
    for each in platform.joint:
        links = "+".join(edge for edge, _ in each.weights)
        limits[f"the limit over {links}"] = each.gb_per_s
    for what, rate in limits.items():
        if rate < LEAST_RATE:
            raise InvalidArgument(
                f"platform {name}: {what} has {rate:g} GB/s: below {LEAST_RATE:g} GB/s (1 MB/s) "
                "nothing is measured; rates are given in GB/s (1e9 bytes a second)"
            )


def _require_transfers(patterns: Sequence[str], platforms: Iterable[Platform]) -> None:
    names = list(dict.fromkeys(case.transfer for each in platforms for case in cases(each)))
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise InvalidArgument(f"no transfer is like {pattern!r}: there are {', '.join(names)}")


def _nameless() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace", prefix="glake-bench-")


class _Child:
    def __init__(
        self,
        name: str,
        platform: Platform,
        request: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        self._name, self._platform, self._settings = name, platform, settings
        self._request = {"name": _INSIDE, **request}
        self._process: subprocess.Popen[str] | None = None
        self._stopped = self._hung = False
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Ends the process, or keeps it from starting."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _alarm(self) -> threading.Timer:
        def ring() -> None:
            self._hung = True
            self.stop()

        alarm = threading.Timer(_SILENT_S, ring)
        alarm.daemon = True
        alarm.start()
        return alarm

    def run(self, progress: Progress) -> list[Row]:
        """Runs the process and returns its rows. Raises BenchFailed."""
        # Files without names, so that nothing of them is left, however this process ends.
        with _nameless() as platforms, _nameless() as said:
            platforms.write(file_text({_INSIDE: self._platform}))
            platforms.flush()
            if not self._start(platforms.fileno(), said):
                return []
            rows, error = self._read(progress)
            said.seek(0)
            last = said.read().strip().splitlines()[-1:]
        assert self._process is not None
        code = self._process.returncode
        if error or code != 0:
            why = error or f"its process ended with {code}" + "".join(f": {line}" for line in last)
            raise BenchFailed(f"platform {self._name} could not be measured: {why}")
        return rows

    def _start(self, inherited: int, said: IO[str]) -> bool:
        platforms = f"/dev/fd/{inherited}"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
        given = {"DRIVER": f"sim:{_INSIDE}", "SIM_PLATFORMS": platforms, "SIM_PHANTOM": "1"}
        given.update(self._settings)
        environment = {**clean, **{f"GLAKE_{key}": value for key, value in given.items()}}
        request = json.dumps({**self._request, "platforms": platforms})
        command = children.command("glake.transfer.bench.child", request)
        with self._lock:
            if not self._stopped:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    pass_fds=(inherited,),
                )
        return self._process is not None

    def _read(self, progress: Progress) -> tuple[list[Row], str]:
        assert self._process is not None and self._process.stdout is not None
        rows: list[Row] = []
        total, error = 0, ""
        alarm = self._alarm()
        with self._process:
            for line in self._process.stdout:
                alarm.cancel()
                alarm = self._alarm()
                told: dict[str, Any] = {}
                with contextlib.suppress(json.JSONDecodeError):
                    told = json.loads(line)
                total = told.get("rows", total)
                if "row" in told:
                    own = {
                        "platform": self._name,
                        "completion": self._settings["SIM_COMPLETION"],
                        "order": self._settings["COPY_ORDER"],
                        "call_lock": self._settings["SIM_CALL_LOCK"],
                    }
                    row = {**told["row"], **own}
                    row["missed"] = missed(row, self._platform)
                    if "batch" in row and (part := part_of_bound(row, self._platform, "batch")):
                        row["batch_reached"] = part.reached
                    rows.append(row)
                if "text" in told:
                    error = told["text"]
                progress(self._name, len(rows), total)
        alarm.cancel()
        if self._hung:
            error = (
                f"its process said nothing for {_SILENT_S:g} s, after row {len(rows)} of {total}"
            )
        elif not error and len(rows) < total and self._process.returncode == 0:
            error = f"{len(rows)} of {total} rows came"
        return rows, error
