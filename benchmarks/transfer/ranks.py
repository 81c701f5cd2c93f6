"""Ranks that see one GPU each load from host memory of both sockets. The other GPUs are idle.

    python benchmarks/transfer/ranks.py [--platform NAME]... [--ranks N]... [--mib SIZE] [--pace P]
        [--kill] [--json]

Real processes share one simulated machine (GLAKE_SIM_MACHINE, GLAKE_SIM_PACE), with one clock and
one set of links. Each sees one GPU by CUDA_VISIBLE_DEVICES and loads SIZE MiB, whose pages are on
all sockets in turn, with the help of the relay service (docs/relayd.md). `GB/s` is all bytes over
the time from the first start to the last end. `plain` is the rate of one copy each at once, `bound`
the rate that all links together allow (a linear program), `jain` the fairness of the ranks' rates.
With --kill the ranks load in a loop, and one is killed every second until one is left. Then nothing
may be in use.

Links are simulated by glake's platforms. A message costs only the real time that it takes, divided
by the pace. A busy machine makes the figures lower, never higher.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

PLATFORMS = ("hgx_h100_h200", "dgx_a100", "dgx1v")
RANKS = (1, 2, 4, 8)
PATIENCE = 300.0  # seconds of real time for any answer
LEAST_SHARE, LEAST_JAIN = 0.90, 0.95


def rank(mib: int) -> None:
    """Runs one rank. It says that it is ready, and then makes a load for each line of its input."""
    from glake import _C, simcuda
    from glake import transfer as t

    engine = t.default_engine()
    hidden = engine.topology.platform.gpus - 1
    end = time.monotonic() + PATIENCE
    while len(engine.stats()["lending"].get("hidden", ())) < hidden:
        if time.monotonic() > end:
            raise SystemExit(f"not served: {engine.stats()['lending']}")
        time.sleep(0.01)
    size = mib << 20
    source = t.pinned((size,))
    target = t.Raw(_C.malloc(size, 0), size, 0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        part = size // int(line)
        began = simcuda.now_ns()
        target_part = t.Raw(target.address, part, 0)
        handle = t.copy(target_part, source[:part], stream=t.UNORDERED)
        handle.wait()
        found = handle.result()
        over = {each["path"]: each["bytes"] for each in found.paths if each["bytes"]}
        answer = {"from": began, "to": simcuda.now_ns(), "over": over}
        print(json.dumps(answer), flush=True)
    engine.close()


def in_use() -> None:
    """Prints the bytes of each GPU's memory that are in use."""
    from glake import _C, simcuda

    print(json.dumps({g: simcuda.ledger(g)["used_bytes"] for g in range(_C.device_count())}))


class Ranks:
    """The ranks of one run, and the machine they share."""

    def __init__(self, platform: str, count: int, mib: int, pace: int) -> None:
        self.where = tempfile.TemporaryDirectory(prefix="glake-ranks-")
        root = Path(__file__).resolve().parents[2]
        clean = {name: text for name, text in os.environ.items() if not name.startswith("GLAKE_")}
        self.environment = clean | {
            "PYTHONPATH": str(root),
            "XDG_RUNTIME_DIR": self.where.name,
            "GLAKE_DRIVER": f"sim:{platform}",
            "GLAKE_SIM_MACHINE": f"ranks-{uuid.uuid4().hex[:12]}",
            "GLAKE_SIM_PACE": str(pace),
            "GLAKE_SIM_PHANTOM": "1",
            "GLAKE_SIM_HOST_NODE": "interleave",
            "GLAKE_SIM_VISIBLE_DEVICES": "1",
            "LOCAL_WORLD_SIZE": "8",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(mib)],
                env=self.environment | {"CUDA_VISIBLE_DEVICES": str(gpu), "LOCAL_RANK": str(gpu)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for gpu in range(count)
        ]
        for process in self.processes:
            self.answer(process)

    def begin(self, process: subprocess.Popen[str], part: int = 1) -> None:
        """Lets the rank load one `part`-th of its memory."""
        assert process.stdin is not None
        process.stdin.write(f"{part}\n")
        process.stdin.flush()

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            raise SystemExit(f"rank {self.processes.index(process)} says nothing")
        line = process.stdout.readline()
        if not line:
            number, code = self.processes.index(process), process.wait(PATIENCE)
            raise SystemExit(f"rank {number} has ended with {code}")
        found: dict[str, Any] = json.loads(line)
        return found

    def load(self, part: int = 1) -> list[dict[str, Any]]:
        """Lets all ranks load at once."""
        for process in self.processes:
            self.begin(process, part)
        return [self.answer(process) for process in self.processes]

    def in_use(self) -> dict[str, int]:
        """Bytes in use on each GPU, seen by a process that joins the machine."""
        environment = {**self.environment, "GLAKE_SIM_VISIBLE_DEVICES": "0"}
        done = subprocess.run(
            [sys.executable, __file__, "--in-use"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        found: dict[str, int] = json.loads(done.stdout)
        return found

    def status(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "glake", "relayd", "--status", "--json"],
            env=self.environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        services: list[dict[str, Any]] = json.loads(done.stdout)["services"]
        return services

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        subprocess.run(
            [sys.executable, "-m", "glake", "relayd", "--stop"],
            env=self.environment, capture_output=True, check=False,
        )  # fmt: skip
        self.where.cleanup()


def pace_of(platform: str) -> int:
    """Real nanoseconds for each nanosecond of the machine. A chunk then takes much longer than a
    message."""
    from glake.transfer.bounds import bound

    return max(1, round(10 * bound(platform, dst="cuda:0", src="cpu", host="pages")))


def measure(platform: str, count: int, mib: int, pace: int) -> dict[str, Any]:
    """Measures one row of the table, after a short round in which paths are opened."""
    from glake.transfer.bounds import Ends, joint_bound

    ranks = Ranks(platform, count, mib, pace)
    try:
        ranks.load(16)
        found = ranks.load()
    finally:
        ranks.end()
    size = mib << 20
    rates = [size / (each["to"] - each["from"]) for each in found]
    first, last = min(each["from"] for each in found), max(each["to"] for each in found)
    copies: list[Ends] = [{"dst": f"cuda:{gpu}", "src": "cpu"} for gpu in range(count)]
    bound = joint_bound(platform, copies, host="pages").total
    plain = joint_bound(platform, copies, host="pages", relays=0).total
    together = count * size / (last - first)
    return {
        "platform": platform,
        "ranks": count,
        "rate": together,
        "plain": plain,
        "bound": bound,
        "share": together / bound,
        "jain": sum(rates) ** 2 / (count * sum(rate * rate for rate in rates)),
        "rates": rates,
        "over": [each["over"] for each in found],
    }


def kill(platform: str, count: int, mib: int, pace: int) -> dict[str, Any]:
    """Lets ranks load in a loop, and kills one every second. Returns what is left in use."""
    ranks = Ranks(platform, count, mib, pace)
    try:
        alive = list(ranks.processes)
        loads = dict.fromkeys(range(count), 0)
        for process in alive:
            ranks.begin(process)
        next_kill = time.monotonic() + 1
        while len(alive) > 1:
            ready, _, _ = select.select([p.stdout for p in alive], [], [], 0.1)
            for process in [p for p in alive if p.stdout in ready]:
                ranks.answer(process)
                loads[ranks.processes.index(process)] += 1
                ranks.begin(process)
            if time.monotonic() >= next_kill:
                victim = alive.pop()
                victim.kill()
                victim.wait()
                next_kill = time.monotonic() + 1
        last = alive[0]
        ranks.answer(last)  # the load that ran when the last of the others died
        ranks.begin(last)
        ranks.answer(last)
        assert last.stdin is not None
        last.stdin.close()
        ended = last.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while any(ranks.in_use().values()) and time.monotonic() < until:
            time.sleep(0.1)  # the service may not have seen yet that they are gone
        used = ranks.in_use()
        clients = sum(len(each["clients"]) for each in ranks.status())
    finally:
        ranks.end()
    return {
        "platform": platform,
        "loads": loads,
        "last_ended_with": ended,
        "clients_left": clients,
        "bytes_left": sum(used.values()),
    }


def main() -> None:
    """Prints the table, or JSON. Exits with 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--platform", action="append")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pace", type=int, help="default: 11 real seconds a GiB of the bound")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-use", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank(given.rank)
        return
    if given.in_use:
        in_use()
        return
    short = False
    rows: list[dict[str, Any]] = []
    if not given.json and not given.kill:
        print("simulated     platform  ranks  plain   GB/s  bound  share   jain  least..most")
    for platform in given.platform or PLATFORMS:
        pace = given.pace or pace_of(platform)
        for count in (8,) if given.kill else given.ranks or RANKS:
            if given.kill:
                row = kill(platform, count, given.mib, pace)
                short |= bool(row["bytes_left"] or row["clients_left"] or row["last_ended_with"])
                text = str(row)
            else:
                row = measure(platform, count, given.mib, pace)
                short |= row["share"] < LEAST_SHARE or row["jain"] < LEAST_JAIN
                text = (
                    f"{platform:>22} {count:6} {row['plain']:6.1f} {row['rate']:6.1f} "
                    f"{row['bound']:6.1f} {row['share']:6.3f} {row['jain']:6.3f}  "
                    f"{min(row['rates']):.1f}..{max(row['rates']):.1f}"
                )
            rows.append(row)
            if not given.json:
                print(text, flush=True)
    if given.json:
        print(json.dumps(rows))
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
