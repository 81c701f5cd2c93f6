"""The process that measures one platform: `python -m glake.transfer.bench.child REQUEST`.

REQUEST is a JSON object: platforms (the path of a platforms file), name, sizes, pages, transfers
(patterns of names). It writes each row, and an error that ends it, to stdout as a line with one
JSON object. Each platform needs its own process, because a process has one driver.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glake import _C, simcuda
from glake.errors import GlakeError, Internal
from glake.platform_file import load_platforms
from glake.platforms import Platform
from glake.transfer import baselines, bounds
from glake.transfer.bench import subjects
from glake.transfer.bench.cases import Case, cases
from glake.transfer.bench.goals import RELAY_GAIN
from glake.transfer.bench.machine import Machine
from glake.transfer.place import graph_of


def main(argument: str) -> int:
    """Measures the platform. Returns 0, or 2 after an error that was reported."""
    request = json.loads(argument)
    try:
        _measure(request)
    except GlakeError as error:
        _tell(error=type(error).__name__, text=str(error))
        return 2
    return 0


def _tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _measure(request: dict[str, Any]) -> None:
    name = request["name"]
    platform = load_platforms(request["platforms"])[name]
    bench = _Bench(platform, Path(request["platforms"]).read_text(), name, request["sizes"])
    found = cases(platform, request["pages"], request["transfers"])
    _tell(rows=len(found) * len(request["sizes"]))
    for case in found:
        for row in bench.rows(case):
            _tell(row=row)
    bad = simcuda.violations()
    if bad:
        raise Internal(f"copies a GPU leaves undefined: {bad[0]['kind']}: {bad[0]['detail']}")


# The engine learns from a copy that is made again: which copies come together, and how to divide
# them. A row is measured when _SAME_ROUNDS rounds in a row took the same time, but for _SAME.
_LEAST_ROUNDS, _SAME_ROUNDS, _MOST_ROUNDS = 8, 6, 32
_SAME = 0.002


def _settled(
    machine: Machine, case: Case, copies: Sequence[subjects.Ends], at_once: bool = False
) -> list[subjects.Outcome]:
    """Makes the copies by glake's engine until their time stays the same. Returns what each round
    took. `at_once`: one call begins all of them."""

    def ours() -> subjects.Outcome:
        return subjects.ours(machine, case, copies, at_once)

    rounds = [ours() for _ in range(_LEAST_ROUNDS)]
    while len(rounds) < _MOST_ROUNDS:
        last = [one.total_ns for one in rounds[-_SAME_ROUNDS:]]
        if max(last) <= (1 + _SAME) * min(last):
            break
        rounds.append(ours())
    return rounds


class _Bench:
    def __init__(self, platform: Platform, text: str, name: str, sizes: list[int]) -> None:
        self._platform, self._text, self._name, self._sizes = platform, text, name, sizes
        self._graph = graph_of(platform)

    def rows(self, case: Case) -> Any:
        """The rows, one for each size."""
        limits = self._limits(case)
        machine = Machine([list(gpus) for gpus in self._platform.sockets], max(self._sizes))
        others: dict[str, subjects.Subject] = {
            "plain": subjects.plain,
            "equal_split": subjects.EqualShares(machine, self._graph),
        }
        try:
            for size in self._sizes:
                copies = subjects.prepared(machine, case, size)
                with self._new_engine():
                    rounds = _settled(machine, case, copies)
                best = rounds[-1]
                times = {"achieved": best.total_ns, "first": rounds[0].total_ns}
                if len(copies) > 1:
                    with self._new_engine():
                        batch = _settled(machine, case, copies, at_once=True)
                    times["batch"] = batch[-1].total_ns
                    times["first_batch"] = batch[0].total_ns
                for label, copy in others.items():
                    times[label] = copy(machine, case, copies).total_ns
                yield {**self._row(case, size, limits, best, times), "rounds": len(rounds)}
        finally:
            machine.close()

    @contextlib.contextmanager
    def _new_engine(self) -> Iterator[None]:
        """An engine that has learnt nothing yet."""
        _C.transfer_open(self._text, self._name)
        try:
            yield
        finally:
            _C.transfer_close()

    def _limits(self, case: Case) -> dict[str, Any]:
        """The bound of the sum; for several copies, also the bound of equal rates; and whether
        relays are worth using."""
        if case.together:
            copies: list[bounds.Ends] = [{"dst": dst, "src": src} for src, dst in case.copies]
            joint = bounds.joint_bound(self._graph, copies, host=case.host)
            found = {"bound": joint.total, "fair_bound": joint.fair * len(case.copies)}
        else:
            src, dst = case.copies[0]
            found = {"bound": bounds.bound(self._graph, dst=dst, src=src, host=case.host)}
        plain = baselines.plain(self._graph, case.copies, host=case.host)
        gain = found.get("fair_bound", found["bound"]) >= RELAY_GAIN * plain
        return {**{label: round(rate, 3) for label, rate in found.items()}, "gain": bool(gain)}

    def _row(
        self,
        case: Case,
        size: int,
        limits: dict[str, Any],
        best: subjects.Outcome,
        times: dict[str, float],
    ) -> dict[str, Any]:
        total = size * len(case.copies) * case.queued
        paths = len(best.paths) / case.queued
        row: dict[str, Any] = {
            "platform": self._name,
            "transfer": case.transfer,
            "host": case.host,
            "size": size,
            **limits,
            **{label: round(total / ns, 3) for label, ns in times.items()},
            "us": {label: round(ns / 1e3, 3) for label, ns in times.items()},
            "relayed": best.relayed,
            "core_per_path": round(best.calls_us * 1e3 / times["achieved"] / paths, 3),
        }
        if case.together and case.queued == 1:
            rates = [size / ns for ns in best.times]
            row["rates"] = [round(rate, 3) for rate in rates]
            row["jain"] = round(sum(rates) ** 2 / (len(rates) * sum(r * r for r in rates)), 4)
        return {**row, "paths": best.paths, "refusals": best.refusals}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
