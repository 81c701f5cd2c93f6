"""The report of one run: one JSON object, documented here, and the promises that it checks.

schema      1
about       date (UTC), seconds (of the whole run), driver ("cuda", or "sim": then nothing in it is
            a measurement), device, driver and library versions, machine
targets     [{name, wanted, seen, met}]: the promises of issue and README; met is null where the run
            has no figure
stages      [{name, status, seconds, budget, exit_status, detail, tests, tail}]: status is passed,
            failed, timed out or skipped; tests: pytest's counts and the names of those that failed;
            tail: the end of the output of a stage that did not pass
measured    driver calls   {rows: [{call, case, handle_bytes, handles, times, unit, median, p10,
                           p90, least}]}, microseconds on the host (benchmarks/gpu/driver_calls.cpp)
            driver lock    the same shape; with still_running, the rounds in which work outlasted
                           the call, and peer_us, the longest enqueue of another thread meanwhile
                           (benchmarks/gpu/driver_lock.cpp)
            dead handles   {rows: [{call, case, outcome}]} (benchmarks/gpu/dead_handles.cpp)
            parts of a handle  the same shape (benchmarks/gpu/handle_parts.cpp)
            jobs           {rows: [{job, allocator, case, limit, finished, steps,
                           peak_allocated_bytes, peak_reserved_bytes, dry_run}]}, bytes: the jobs of
                           benchmarks/real (benchmarks/gpu/jobs.py)
            copies         the same shape, in GB/s (benchmarks/gpu/copies.cpp)
            transfers      the same; case "glake" or "plain" (benchmarks/gpu/transfers.py)
            side by side   {latency, ample, tight, largest, lost, errors} of one training job under
                           each allocator (benchmarks/gpu/side_by_side.py); times in milliseconds a
                           step, a list a round; ratios are of one allocator's time over another's
                           in the same round, the median of the rounds
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpulane.runner import PASSED, Outcome
from gpulane.stages import ROOT

SCHEMA = 1
STEP_TARGET = 1.01
PACKAGES = ("torch", "triton", "numpy", "pybind11", "setuptools", "pytest", "hypothesis", "cmake",
            "ninja", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "cupy-cuda13x")  # fmt: skip


def about(driver: str) -> dict[str, Any]:
    """Date, device, driver, versions; null for what is not known. Opens no CUDA context."""
    query = "name,driver_version,memory.total,uuid,vbios_version"
    row = _say("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
    values = row.splitlines()[0].split(", ") if row and driver == "cuda" else []
    gpu = dict(zip(query.split(","), values, strict=False))
    cpu = re.search(r"model name\s*: (.+)", _read("/proc/cpuinfo"))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "driver": driver,
        "device": gpu.get("name") or ("simcuda" if driver == "sim" else "unknown GPU"),
        "device_memory_mib": gpu.get("memory.total"),
        "device_uuid": gpu.get("uuid"),
        "vbios": gpu.get("vbios_version"),
        "driver_version": gpu.get("driver_version"),
        "cuda": _torch_cuda(),
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "compiler": _compiler(),
        "system": f"{platform.system()} {platform.release()}, glibc {platform.libc_ver()[1]}",
        "processor": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        # A copy of the files without their history is told its commit.
        "commit": _say("git", "-C", str(ROOT), "rev-parse", "HEAD") or os.environ.get("COMMIT"),
    }  # fmt: skip


def build(facts: dict[str, Any], outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """The whole report, from what is known so far."""
    measured = {each.name: each.result for each in outcomes if each.result is not None}
    stages = []
    for each in outcomes:
        row = asdict(each)
        row.pop("result")
        stages.append(row)
    return {
        "schema": SCHEMA,
        "about": {**facts, "seconds": round(seconds, 1)},
        "targets": targets(measured.get("side by side"), outcomes)
        + copy_targets(measured.get("transfers")),
        "stages": stages,
        "measured": measured,
    }


def targets(side: dict[str, Any] | None, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The promises, each with what was seen. `met` is None if the run has no figure for it."""
    found = side or {}
    ample = found.get("ample", {}).get("allocators", {})
    tight = found.get("tight", {}).get("allocators", {})
    step = ample.get("glake", {}).get("ratio_to_native")
    noise = ample.get("native again", {}).get("ratio_to_native")
    beside = tight.get("glake", {}).get("ratio_to_expandable")
    same = ample.get("glake", {}).get("losses_as_native")
    bad = [f"{each.name} {each.status}" for each in outcomes if each.status != PASSED]
    rows = [
        ("every suite and stage passes", "all", ", ".join(bad) or "all", not bad),
        ("losses are native's, bit by bit", "identical", {True: "identical", False: "different"}
            .get(same), same),
        ("step time at ample memory, x native", f"<= {STEP_TARGET}", _times(step, noise),
            None if step is None else step <= STEP_TARGET),
        ("step time at 3 % headroom, x expandable", "< 1", _times(beside, None),
            _faster(beside, tight)),
        ("no out of memory at 3 % headroom", "glake fits", _who_died(tight),
            _survived(tight.get("glake"))),
    ]  # fmt: skip
    return [dict(zip(("name", "wanted", "seen", "met"), row, strict=True)) for row in rows]


def copy_targets(transfers: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The promises about copies of 1 MiB and more, as targets() gives them."""
    rates = {(row["call"], row["bytes"], row["case"]): row["median"]
             for row in (transfers or {}).get("rows", [])}  # fmt: skip
    least: dict[str, float] = {}
    for (call, size, case), rate in rates.items():
        plain = rates.get((call, size, "plain"))
        if case == "glake" and plain and size >= 1 << 20:
            kind = call.split(", ")[1]
            least[kind] = min(least.get(kind, rate / plain), rate / plain)
    wanted = (("pinned copies, x a plain one", "pinned", 0.98),
              ("pageable copies, x torch's", "pageable", 1.0))  # fmt: skip
    return [
        {"name": name, "wanted": f">= {limit}",
         "seen": f"{least[kind]:.3f}" if kind in least else None,
         "met": least[kind] >= limit if kind in least else None}
        for name, kind, limit in wanted
    ]  # fmt: skip


def _times(ratio: float | None, noise: float | None) -> str | None:
    if ratio is None:
        return None
    return f"{ratio:.4f}" + ("" if noise is None else f" (native again: {noise:.4f})")


def _survived(row: dict[str, Any] | None) -> bool | None:
    if row is None or (row.get("oom") is None and not row.get("rounds_ms")):
        return None
    return row["oom"] is None


def _faster(ratio: float | None, tight: dict[str, Any]) -> bool | None:
    if ratio is not None:
        return ratio < 1
    died = _survived(tight.get("expandable")) is False
    return True if died and _survived(tight.get("glake")) else None


def _who_died(tight: dict[str, Any]) -> str | None:
    known = {name: _survived(row) for name, row in tight.items()}
    if not any(value is not None for value in known.values()):
        return None
    words = {True: "fits", False: "out of memory", None: "no figure"}
    return ", ".join(f"{name}: {words[value]}" for name, value in known.items())


def file_name(facts: dict[str, Any]) -> str:
    """<date>-<device>, of letters, digits, "." and "-"."""
    device = re.sub(r"[^A-Za-z0-9.]+", "-", facts["device"]).strip("-")
    return f"{facts['date'][:10]}-{device}"


def place(directory: Path, facts: dict[str, Any]) -> Path:
    """The path of the run's .json file, which no earlier run has. The .txt file is beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    stem, number = file_name(facts), 1
    while (path := directory / f"{stem}{'' if number == 1 else f'-{number}'}.json").exists():
        number += 1
    return path


def write(path: Path, report: dict[str, Any], text: str) -> None:
    """Writes both files, each whole or not at all."""
    for target, content in ((path, json.dumps(report, indent=1) + "\n"),
                            (path.with_suffix(".txt"), text)):  # fmt: skip
        made = target.with_name(f".{target.name}.part")
        made.write_text(content)
        made.replace(target)


def _compiler() -> str | None:
    told = _say(*(os.environ.get("CXX") or "g++").split(), "--version")
    return told.split("\n")[0] if told else None


def _say(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.version.cuda
