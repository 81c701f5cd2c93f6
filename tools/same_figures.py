"""Saves figures that must stay the same, to the last digit, when only the code's structure changes.

    python tools/same_figures.py --save FILE     # before a change
    python tools/same_figures.py --compare FILE  # after it: exit code 1, and what differs, if any

--only PART ... chooses parts. The parts are:

- `replays`: glake's own core by both of its policies, on each trace of tests/traces and on random
  ones of up to five streams. Driver calls and their modelled time, step by step; what is live and
  held over time, and where each block lies at three quarters of it; the texts of refusals; the
  smallest capacity.
- `targets`: the figures of benchmarks/allocator/targets.py for the traces of tests/traces.
- `transfer`: `glake bench transfer` on all platforms, by both ways of completion.

No figure is a time measured here, so that two runs of one version give the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glake.trace.replay import COST_TABLES, NEVER, load_trace, replay

ROOT = Path(__file__).resolve().parents[1]
POLICIES = ("glake", "compact")
DELAYS = (0, 512, NEVER)
CAPACITIES = (None, 1.002, 1.01, 1.05, 1.3)  # times the peak of the live bytes; None: unlimited
TIMED = ("host_ns_alloc", "host_ns_free")
RANDOM_TRACES, EVENTS = 6, 5000


def random_lines(seed: int) -> Iterator[str]:
    """A trace of blocks of 1 byte to 48 MiB, freed in any order, some after record_stream."""
    draw = random.Random(seed)
    streams = (1, 2, 5)[seed % 3]
    live: list[int] = []
    for event in range(EVENTS):
        if event % 500 == 0:
            yield f"s {event // 500}"
        if draw.random() < (0.52 if len(live) < 120 else 0.44) or not live:
            size = draw.randint(1, 48 << 20) >> draw.choice((0, 0, 3, 6, 12))
            live.append(event)
            yield f"a {event} {max(size, 1)} {draw.randrange(streams)}"
        elif streams > 1 and draw.random() < 1 / 16:
            yield f"r {draw.choice(live)} {draw.randrange(streams)}"
        else:
            yield f"f {live.pop(draw.randrange(len(live)))}"


def traces(folder: Path) -> list[Path]:
    """The repository's own traces, and random ones written into `folder`."""
    for seed in range(RANDOM_TRACES):
        (folder / f"random-{seed}.trace").write_text("\n".join(random_lines(seed)) + "\n")
    return [*sorted((ROOT / "tests" / "traces").glob("*.trace.gz")), *sorted(folder.iterdir())]


def figures(trace: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each replay of the trace, by policy, capacity and delay."""
    for policy in POLICIES:
        for times in CAPACITIES:
            for delay in DELAYS:
                capacity = None if times is None else int(trace.peak_live_bytes * times)
                result = replay(
                    trace,
                    policy,
                    capacity=capacity,
                    complete_after=delay,
                    costs=COST_TABLES,
                    layout_at=trace.events * 3 // 4,
                )
                yield f"{policy}, {times or 'unlimited'}, {delay}", dataclasses.asdict(result)
        least = replay(trace, policy, find_min_capacity=True)
        yield f"{policy}, smallest", {"min_capacity_bytes": least.min_capacity_bytes}


def replays() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each replay of each trace."""
    with tempfile.TemporaryDirectory() as folder:
        for path in traces(Path(folder)):
            for name, result in figures(load_trace(path, path.name)):
                kept = {key: value for key, value in result.items() if key not in TIMED}
                yield f"{path.name}: {name}", kept


def printed(*words: str) -> list[dict[str, Any]]:
    """The JSON list that a Python program prints; its messages are shown.

    Raises:
        subprocess.CalledProcessError: the program failed.
    """
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures that targets.py prints for each trace."""
    files = sorted(str(path) for path in (ROOT / "tests" / "traces").glob("*.trace.gz"))
    for row in printed("benchmarks/allocator/targets.py", "--json", *files):
        yield f"targets of {row['trace']}", row


def transfer() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of `glake bench transfer`."""
    for completion in ("instant", "polled"):
        words = ("--platform", "all", "--completion", completion, "--json")
        for row in printed("-m", "glake", "bench", "transfer", *words):
            where = f"{row['platform']}, {row['transfer']}, {row['host']} host memory"
            yield f"{where}, {row['size']} bytes, {completion}", row


PARTS: dict[str, Callable[[], Iterator[tuple[str, dict[str, Any]]]]] = {
    "replays": replays,
    "targets": targets,
    "transfer": transfer,
}


def measured(parts: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures of these parts, by part and row."""
    all_figures = {}
    for part in parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        all_figures[part] = dict(PARTS[part]())
    return all_figures


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Each row that differs, with the figures that do."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, {}), after.get(name, {})
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        if keys:
            yield f"{name}: {', '.join(keys)}"


def main() -> int:
    """Saves or compares the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=Path, metavar="FILE")
    what.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    options = parser.parse_args()
    after = measured(options.only)
    if options.save is not None:
        options.save.write_text(json.dumps(after, sort_keys=True))
        return 0
    before = json.loads(options.compare.read_text())
    if absent := [part for part in options.only if part not in before]:
        parser.error(f"{options.compare} was saved without {', '.join(absent)}: name --only")
    same = True
    for part in options.only:
        # The figures go through JSON, like those of the file, so that tuples become lists.
        lines = list(differences(before[part], json.loads(json.dumps(after[part]))))
        same = same and not lines
        print(*lines or [f"{part}: {len(after[part])} rows, the same to the last digit"], sep="\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
