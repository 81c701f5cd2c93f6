"""Shows the results of capacity.py as a table (Markdown, on stdout) and a picture (capacity.svg).

table.py [RESULTS]: RESULTS is a folder of JOB.json. Any Python with glake runs it. If glake and
compact both need more than native or expandable for a job, a line says so, and the exit code is 1.
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

from glake.units import size

HERE = Path(__file__).resolve().parent
ORDER = ("finetune_7b", "lora_13b", "fsdp2_8ranks", "moe_hash_routed", "rollout_and_train")
COLOURS = {
    "native": "#c44e2b", "expandable": "#8a63b8", "glake": "#1b7f5c", "compact": "#5aa786",
}  # fmt: skip
_WIDTH, _LEFT, _BAR, _GAP = 860, 110, 15, 44


def load(folder: Path) -> list[dict[str, Any]]:
    """The jobs that were measured with glake and PyTorch's own, in the table's order."""
    found = [json.loads((folder / f"{name}.json").read_text())
             for name in ORDER if (folder / f"{name}.json").exists()]  # fmt: skip
    return [job for job in found if {"native", "expandable", "glake"} <= job["runs"].keys()]


def times_live(job: dict[str, Any], run: dict[str, Any]) -> float:
    """The smallest GPU over the least that the job's tensors hold under any allocator."""
    live = min(each["peak_allocated_bytes"] for each in job["runs"].values())
    return float(run["smallest_capacity_bytes"] / live)


def late(run: dict[str, Any]) -> tuple[int, float]:
    """Driver calls and modelled milliseconds of the last step."""
    history = run["driver_history"]
    if len(history) < 2:
        return 0, 0.0
    (calls, us), (before, us_before) = history[-1], history[-2]
    return calls - before, (us - us_before) / 1000


def markdown(jobs: list[dict[str, Any]]) -> str:
    lines = [
        "| job | allocator | smallest GPU | x live | reserved at most, 80 GiB | driver calls: all, "
        "last step | their time, `published` | at 1.05 x live: time of the last step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for job in jobs:
        for name, run in job["runs"].items():
            calls, _ = late(run)
            first = name == next(iter(job["runs"]))
            lines.append(
                f"| {job['title'] if first else ''} | {name} | "
                f"{size(run['smallest_capacity_bytes'])} | {times_live(job, run):.4f} | "
                f"{size(run['peak_reserved_bytes'])} | {run['driver_calls']:,}, {calls:,} | "
                f"{run['driver_us'] / 1000:,.0f} ms | {_tight(job, name)} |"
            )
    return "\n".join(lines)


def _tight(job: dict[str, Any], name: str) -> str:
    run = job["tight"].get(name)
    if run is None:
        return "not run"
    if run["oom"] is not None:
        return f"out of memory after {run['oom']['step']} steps"
    return f"{late(run)[1]:,.1f} ms"


def speed(jobs: list[dict[str, Any]]) -> str:
    """The time that the dry runs themselves took."""
    lines = ["| job | ranks | seconds a step | host memory of a rank |", "|---|---|---|---|"]
    for job in jobs:
        runs = [*job["runs"].values(), *job["tight"].values()]
        steps = [run["step_seconds"] for run in runs if run["step_seconds"]]
        most = max(run["host_rss_bytes"] for run in runs)
        lines.append(
            f"| {job['title']} | {runs[0]['ranks']} | {min(steps):.2f} to {max(steps):.2f} | "
            f"{size(most)} |"
        )
    return "\n".join(lines)


def picture(jobs: list[dict[str, Any]]) -> str:
    """Bars of what each allocator needs beyond the live bytes, as a share of them."""
    most = max(times_live(job, run) - 1 for job in jobs for run in job["runs"].values())
    across = (_WIDTH - _LEFT - 120) / most
    parts, y = [], 24
    for job in jobs:
        live = min(run["peak_allocated_bytes"] for run in job["runs"].values())
        parts.append(
            f'<text x="8" y="{y}" font-weight="bold">{html.escape(job["title"])}: '
            f"{size(live)} live at the peak</text>"
        )
        for name, run in job["runs"].items():
            y += _BAR + 3
            beyond = times_live(job, run) - 1
            parts.append(f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end">{name}</text>')
            parts.append(
                f'<rect x="{_LEFT}" y="{y - 11}" width="{max(1.0, beyond * across):.1f}" '
                f'height="{_BAR - 1}" fill="{COLOURS[name]}"/>'
            )
            parts.append(
                f'<text x="{_LEFT + 6 + beyond * across:.1f}" y="{y}">+{beyond:.2%}, '
                f"{size(run['smallest_capacity_bytes'])}</text>"
            )
        y += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
        f'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def short(jobs: list[dict[str, Any]]) -> list[str]:
    """Jobs in which glake needs more than PyTorch's allocators, beyond a search's precision."""
    found = []
    for job in jobs:
        least = {name: run["smallest_capacity_bytes"] for name, run in job["runs"].items()}
        other = min(least["native"], least["expandable"])
        if min(least["glake"], least.get("compact", least["glake"])) > other * (
            1 + job["precision"]
        ):
            found.append(f"{job['title']}: glake {size(least['glake'])}, others {size(other)}")
    return found


def main(folder: Path) -> int:
    jobs = load(folder)
    if not jobs:
        sys.exit(f"no whole results in {folder}: run capacity.py first")
    dates = sorted({job["date"] for job in jobs})
    print(markdown(jobs), speed(jobs), sep="\n\n")
    print(f"\n{', '.join(dates)}; {json.dumps(jobs[0]['versions'])}; {jobs[0]['machine']}")
    (folder / "capacity.svg").write_text(picture(jobs))
    worse = short(jobs)
    for line in worse:
        print(f"SHORT: {line}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results"))
