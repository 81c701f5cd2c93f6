"""The report as text, for people."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 118
MIB, GIB = 2**20, 2**30


def text(report: dict[str, Any]) -> str:
    """The whole report as plain text tables."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False)
    facts = report["about"]
    console.print(f"glake on {facts['device']}, {facts['date']}")
    if facts["driver"] == "sim":
        console.print("SIMULATED: a trial of the scripts. No figure here is a measurement.")
    console.print(
        f"driver {facts['driver_version']}, CUDA {facts['cuda']} (torch), Python "
        f"{facts['python']}, {facts['compiler']}\n"
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}\n"
        + ", ".join(f"{name} {value}" for name, value in facts["versions"].items() if value)
    )
    console.print(f"commit {facts['commit']}, {facts['seconds']:.0f} s in all\n")
    console.print(_targets(report["targets"]))
    console.print(_stages(report["stages"]))
    measured = report["measured"]
    for name, tables in (
        ("side by side", side_by_side),
        ("jobs", jobs),
        ("driver calls", driver_calls),
        ("driver lock", driver_lock),
        ("dead handles", outcomes("Handles that are dead")),
        ("parts of a handle", outcomes("Parts of a memory handle")),
        ("copies", copies),
        ("transfers", transfers),
    ):
        if name in measured:
            for table in tables(measured[name]):
                console.print(table)
    for stage in report["stages"]:
        if stage["tail"]:
            console.print(f"\n== {stage['name']} {stage['status']}; its output ended:")
            out.write(stage["tail"].rstrip() + "\n")
    return out.getvalue()


def _table(title: str, *headings: str, right: int = 1) -> Table:
    """A table. Its columns from number `right` on have figures, and are aligned to the right."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index >= right else "left")
    return table


def _targets(rows: list[dict[str, Any]]) -> Table:
    table = _table("What glake promises", "promise", "wanted", "seen", "met", right=9)
    words = {True: "met", False: "NOT MET", None: "no figure"}
    for row in rows:
        table.add_row(row["name"], row["wanted"], row["seen"] or "-", words[row["met"]])
    return table


def _stages(rows: list[dict[str, Any]]) -> Table:
    table = _table("Stages", "stage", "ended", "seconds", "budget", "tests", right=2)
    for row in rows:
        tests = row["tests"] or {}
        counts = ", ".join(f"{n} {what}" for what, n in tests.items() if what != "names")
        ended = row["status"] + (f": {row['detail']}" if row["detail"] else "")
        table.add_row(row["name"], ended, f"{row['seconds']:.0f}", f"{row['budget']:.0f}", counts)
        for name in tests.get("names", []):
            table.add_row("", f"  failed: {name}", "", "", "")
    return table


def _number(value: Any, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value} B"


def driver_calls(data: dict[str, Any]) -> list[Table]:
    """Host time of each call."""
    table = _table(
        "Driver calls, microseconds on the host",
        *("call", "case", "handles", "others", "median", "p10", "p90", "times"),
        right=2,
    )
    for row in data["rows"]:
        handles = ""
        if "handle_bytes" in row:
            handles = f"{row.get('handles', 1)} x {_size(row['handle_bytes'])}"
        others = next(
            (row[key] for key in ("others", "still_running", "threads") if key in row), None
        )
        cells = [_number(row[key]) for key in ("median", "p10", "p90")]
        note = "" if others is None else str(others)
        table.add_row(row["call"], row["case"], handles, note, *cells, str(row["times"]))
    table.caption = (
        "others: mapped beside (next to); rounds in which the kernel ran on (busy); threads at "
        "once, the time being each granule's or enqueued copy's (by threads)"
    )
    return [table]


def driver_lock(data: dict[str, Any]) -> list[Table]:
    """Tells which calls wait for work under way, and which hold up other threads."""
    table = _table(
        "Driver calls while work runs in another stream, microseconds",
        *("call", "case", "did not wait", "median", "p90", "another thread's enqueue, longest"),
        right=2,
    )
    for row in data["rows"]:
        ran_on = f"{row['still_running']} of {row['times']}"
        cells = [_number(row[key]) for key in ("median", "p90", "peer_us")]
        table.add_row(row["call"], row["case"], ran_on, *cells)
    table.caption = "did not wait: rounds in which the work outlasted the call"
    return [table]


def outcomes(title: str) -> Callable[[dict[str, Any]], list[Table]]:
    """Tables of the driver's answers to calls whose effect no document describes."""

    def tables(data: dict[str, Any]) -> list[Table]:
        table = _table(title, "call", "case", "outcome", right=9)
        for row in data["rows"]:
            table.add_row(row["call"], row["case"], row["outcome"])
        return [table]

    return tables


def jobs(data: dict[str, Any]) -> list[Table]:
    """The README's jobs: their figures on this GPU beside those of their dry runs."""
    table = _table(
        "The jobs of benchmarks/real, on this GPU and as dry runs had said",
        *("job", "allocator", "limit", "ended", "peak live", "dry run", "peak reserved", "dry run"),
        right=4,
    )
    for row in sorted(data["rows"], key=lambda row: (row["job"], row["case"], row["allocator"])):
        limit = _size(row["limit"]) if row["limit"] else "none"
        if "error" in row:
            table.add_row(row["job"], row["allocator"], limit, row["error"][:40], *("-",) * 4)
            continue
        ended = "fits" if row["finished"] else f"OUT OF MEMORY after {row['steps']} steps"
        told = row["dry_run"]
        reserved = _size(told["peak_reserved_bytes"]) if row["case"] == "ample" else "-"
        live = _size(told["peak_allocated_bytes"]) if row["case"] == "ample" else "-"
        table.add_row(
            *(row["job"], row["allocator"], limit, ended),
            *(_size(row["peak_allocated_bytes"]), live),
            *(_size(row["peak_reserved_bytes"]), reserved),
        )
    return [table]


def copies(data: dict[str, Any]) -> list[Table]:
    """Rates of copies, and of kernels on each kind of memory beside plain memory."""
    return [_rates("Copies and kernels, GB/s", "memory", data)]


def transfers(data: dict[str, Any]) -> list[Table]:
    """glake's copies beside torch's."""
    return [_rates("One copy from call to end, GB/s", "by", data)]


def _rates(title: str, case: str, data: dict[str, Any]) -> Table:
    plain = {
        (row["call"], row["bytes"]): row["median"] for row in data["rows"] if row["case"] == "plain"
    }
    table = _table(
        title, *("what", case, "bytes", "median", "p10", "p90", "x plain"),
        right=2,
    )  # fmt: skip
    for row in data["rows"]:
        base = plain.get((row["call"], row["bytes"]))
        ratio = row["median"] / base if base else None
        cells = [_number(row[key]) for key in ("median", "p10", "p90")]
        table.add_row(row["call"], row["case"], _size(row["bytes"]), *cells, _number(ratio, 3))
    return table


def side_by_side(data: dict[str, Any]) -> list[Table]:
    """The training job under each allocator."""
    made = []
    if data.get("latency"):
        table = _table(
            "Allocation and free, nanoseconds a pair",
            "bytes",
            "allocator",
            "Python",
            "C++",
            right=2,
        )
        for name, rows in data["latency"].items():
            for row in rows:
                cells = (_number(row["python_ns"], 0), _number(row["cpp_ns"], 0))
                table.add_row(_size(row["bytes"]), name, *cells)
        made.append(table)
    if "ample" in data:
        part = data["ample"]
        table = _table(
            f"Ample memory: batch {part['batch']}, lengths up to {data['longest']}",
            *("allocator", "ms a step", "x native", "rounds", "calls"),
            *("peak live", "peak reserved", "held", "losses"),
        )
        for name, row in part["allocators"].items():
            same = {True: "same bits", False: "DIFFERENT"}[bool(row.get("losses_as_native"))]
            times = (*_times(row, "ratio_to_native"), *_rounds(row, "ratios_to_native"))
            table.add_row(name, *times, *_memory(row), same)
        made.append(table)
    if "tight" in data:
        part = data["tight"]
        table = _table(
            f"Tight memory: {_size(part['limit_bytes'])}, 3 % above the peak live bytes",
            *("allocator", "ms a step", "x expandable", "rounds", "calls"),
            *("x own ample", "retries", "ended"),
        )
        for name, row in part["allocators"].items():
            ended = "ran" if row["oom"] is None else f"OUT OF MEMORY in step {row['oom']['step']}"
            more = (_number(row.get("ratio_to_own_ample"), 4), str(row.get("alloc_retries", "-")))
            times = (*_times(row, "ratio_to_expandable"), *_rounds(row, "ratios_to_expandable"))
            table.add_row(name, *times, *more, ended)
        made.append(table)
    if "largest" in data:
        part = data["largest"]
        table = _table(
            f"Largest batch in {_size(part['limit_bytes'])}",
            "allocator",
            "batch",
            "tries",
            "settled",
        )
        for name, row in part["allocators"].items():
            told = "yes" if row["settled"] else "no, out of time"
            table.add_row(name, str(row["batch"] or "-"), str(len(row["tries"])), told)
        made.append(table)
    if data.get("lost") or data.get("errors"):
        table = _table("What went wrong side by side", "where", "what", right=9)
        for where, what in {**data.get("lost", {}), **data.get("errors", {})}.items():
            table.add_row(where, what)
        made.append(table)
    return made


def _times(row: dict[str, Any], ratio: str) -> tuple[str, str]:
    return _number(row.get("step_ms")), _number(row.get(ratio), 4)


def _rounds(row: dict[str, Any], ratios: str) -> tuple[str, str]:
    """Two texts: the least and the greatest ratio of any round, and glake's driver calls in each
    round."""
    found = row.get(ratios) or []
    calls = [each for each in row.get("round_calls", []) if each is not None]
    between = f"{min(found):.2f} to {max(found):.2f}" if found else "-"
    return between, " ".join(map(str, calls)) or "-"


def _memory(row: dict[str, Any]) -> tuple[str, str, str]:
    live, reserved = row.get("peak_requested_bytes"), row.get("peak_reserved_bytes")
    return _size(live), _size(reserved), _size(row.get("held_bytes"))
