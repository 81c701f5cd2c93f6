"""Does a job fit? It is recorded without running it, and then replayed under allocation policies.

>>> plan = glake.trace.plan("train:make_step", gpu="80GiB", world=8)
>>> plan.verdict
'train:make_step fits in 80GiB with glake; not with native'
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from glake import arguments, outside
from glake.errors import InvalidArgument, PlanError
from glake.trace.holders import Holder, fold
from glake.trace.record import record
from glake.trace.replay import MAX_CAPACITY, NEVER, ReplayResult, load_trace, replay, require_policy
from glake.trace.roles import by_role
from glake.units import size

if TYPE_CHECKING:
    from glake._C import Trace
    from glake.typing import Json

DEFAULT_POLICIES = ("glake", "native", "expandable")
COMPLETE_AFTER = 512

_LEAST = 2 << 20
_NAMES = {
    "native": "PyTorch's default allocator",
    "expandable": "PyTorch's expandable segments",
}
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class MemoryPlan:
    """What a plan found. Sizes are bytes.

    Attributes:
        target: the job's name.
        trace: path of the recorded trace; None: it was not kept.
        facts: what the recorder reported, with its assumptions.
        gpu_text: the device, as it was asked for.
        gpu_bytes: the device's memory.
        context_bytes: the part of it that is set aside for CUDA and NCCL.
        capacity_bytes: the rest of it, for the job.
        results: one replay for each policy at that capacity, with its smallest capacity.
        holders: (tag, bytes, blocks) that are live where live memory peaks, the largest first.
        roles: (role, bytes) of the same blocks.
        advice: what to change, the most urgent first.
    """

    target: str
    trace: str | None
    facts: dict[str, int | str]
    gpu_text: str
    gpu_bytes: int
    context_bytes: int
    capacity_bytes: int
    results: list[ReplayResult]
    holders: list[Holder]
    roles: list[tuple[str, int]]
    advice: list[str]

    @property
    def fits(self) -> dict[str, bool]:
        """Whether the job runs to its end, for each policy."""
        return {each.policy: each.oom is None for each in self.results}

    @property
    def verdict(self) -> str:
        """One plain sentence."""
        where = f"in {self.gpu_text}"
        allocators = [each for each in self.results if not each.is_bound]
        runs = [_named(each.policy) for each in allocators if each.oom is None]
        fails = [_named(each.policy) for each in allocators if each.oom is not None]
        if not runs:
            short = self.results[0].trace_peak_live_bytes - self.capacity_bytes
            why = (
                f": {size(short)} too many are live at once"
                if short > 0
                else f" with {_listed(fails, 'or')}, though its live bytes would"
            )
            return f"{self.target} does not fit {where}{why}"
        rest = f"; not with {_listed(fails, 'or')}" if fails else ""
        return f"{self.target} fits {where} with {_listed(runs, 'and')}{rest}"

    def to_json(self) -> dict[str, Json]:
        """Everything as plain values. Results are without their timelines and layouts."""
        from glake.trace.report import to_json

        return {
            "target": self.target,
            "verdict": self.verdict,
            "fits": self.fits,
            "gpu_bytes": self.gpu_bytes,
            "context_bytes": self.context_bytes,
            "capacity_bytes": self.capacity_bytes,
            "trace": self.trace,
            "facts": self.facts,
            "policies": [to_json(each) for each in self.results],
            "by_role": [{"role": role, "bytes": held} for role, held in self.roles],
            "holders": [
                {"tag": tag, "bytes": held, "blocks": blocks}
                for tag, held, blocks in folded(self.holders)[:20]
            ],
            "advice": self.advice,
        }


def plan(
    target: str,
    *,
    gpu: int | str = "80GiB",
    world: int = 1,
    steps: int = 4,
    rank: int = 0,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
    policies: Sequence[str] = DEFAULT_POLICIES,
    context: int | str | None = None,
    attention: str = "flash",
    scratch: str = "default",
    complete_after: int = COMPLETE_AFTER,
    find_min_capacity: bool = True,
    out: str | os.PathLike[str] | None = None,
    keep: bool = True,
    html: str | os.PathLike[str] | None = None,
    python: str = "",
    progress: Progress | None = None,
) -> MemoryPlan:
    """Records `target` without running it, and replays it on a device of `gpu` bytes.

    Args:
        target: "module:make_step", from the current directory, or the name of a ready plan.
        gpu: the device's memory, in bytes or as text such as "80GiB".
        context: the part of it to set aside for CUDA, and for NCCL if world > 1; None: the estimate
            of glake.outside.
        world, rank, steps, seed, options, attention, scratch: of the recording (glake.trace.Job).
        policies: the names of the policies to replay under (glake.trace.replay.policies()).
        complete_after, find_min_capacity: as of glake.trace.replay.replay.
        out: the path at which to keep the trace; None: a temporary file, for the caller to remove.
        keep: without `out`: whether the temporary file stays. Until the plan is made it has no
            name, so that nothing is left however the process ends.
        html: the path to which the report is written too; None: no report.
        python: an interpreter with a CPU build of torch, to record with; "": this one.
        progress: called with (share of the whole that is done, what is being done).

    Raises:
        BadTarget, PlanError, AdapterBuildError: see glake.trace.record.record. PlanError also if
            there is no policy or an unknown one, if a size cannot be read, or if set-up alone takes
            more than the device has.
        WrongType: an argument of another type.
        FileFailed: the trace or the report cannot be written. Checked before anything is recorded.
        PackageMissing: the report needs a package that is not installed.
    """
    arguments.text("a target", target)
    arguments.text_list("policies", policies)
    arguments.function("progress", progress)
    world = arguments.count("world", world)
    gpu_bytes = parse_size("gpu", gpu)
    set_aside = outside.estimate(world) if context is None else parse_size("context", context, 0)
    capacity = gpu_bytes - set_aside
    if capacity < _LEAST:
        raise PlanError(
            f"gpu {gpu}: nothing is left of it once the context takes {size(set_aside)}; "
            "give a larger gpu or a smaller context"
        )
    if not policies:
        raise PlanError("policies is empty: name one or more of glake.trace.replay.policies()")
    for name in policies:
        _require(name)
    if arguments.count("complete_after", complete_after) < NEVER:
        raise PlanError(f"complete_after {complete_after}: events, or {NEVER} for never")
    if html is not None:
        from glake.trace import html as report

        html = report.require_place(html)
    tell = progress or (lambda share, doing: None)
    with contextlib.ExitStack() as stack:
        file: Any = out
        path = arguments.path("a trace", out) if out is not None else ""
        if out is None:
            file = stack.enter_context(tempfile.TemporaryFile(prefix="glake-"))
            path = f"/dev/fd/{file.fileno()}"
        facts = record(
            target,
            file,
            python=python,
            progress=lambda done, of, doing: tell(0.7 * done / of, doing),
            world=world,
            rank=rank,
            steps=steps,
            seed=seed,
            options={} if options is None else options,
            attention=attention,
            scratch=scratch,
            total_bytes=capacity,
        )
        trace = load_trace(path, "" if out is not None else target)
        device = {"capacity": capacity, "complete_after": complete_after}
        results = _replays(trace, policies, tell, find_min_capacity=find_min_capacity, **device)
        if html is not None:
            tell(0.99, "report")
            report.write(html, trace, results)
        advice = _advice(trace, results)
        kept = path if out is not None else _kept(target, file) if keep else None
    return MemoryPlan(
        target=target,
        trace=kept,
        facts=facts,
        gpu_text=str(gpu) if isinstance(gpu, str) else size(gpu),
        gpu_bytes=gpu_bytes,
        context_bytes=set_aside,
        capacity_bytes=capacity,
        results=results,
        holders=trace.holders(trace.peak_live_event),
        roles=by_role(trace.holders(trace.peak_live_event), trace.lasting(trace.peak_live_event)),
        advice=advice,
    )


def _replays(
    trace: Trace, policies: Sequence[str], tell: Progress, **how: Any
) -> list[ReplayResult]:
    results = []
    for number, name in enumerate(policies):
        tell(0.7 + 0.3 * number / len(policies), f"replay: {name}")
        results.append(replay(trace, name, layout_at="peak", **how))
    return results


def parse_size(name: str, value: int | str, least: int = _LEAST) -> int:
    """Bytes from 85899345920, "80GiB" or "80 GiB". Raises PlanError, which names the limit."""
    try:
        found = arguments.size(name, value)
    except InvalidArgument as bad:
        raise PlanError(f'{bad}; give bytes or a size such as "80GiB"') from bad
    if found < least:
        raise PlanError(f"{name} {value!r}: less than {size(least)}")
    if found > MAX_CAPACITY:
        raise PlanError(f"{name} {value!r}: more than {size(MAX_CAPACITY)}, the largest there is")
    return found


def folded(holders: Sequence[Holder]) -> list[Holder]:
    """Holders with `*` for the numbers of layers, added up, the largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for tag, held, blocks in holders:
        key = ";".join(fold(frame) for frame in tag.split(";"))
        before = sums.get(key, (0, 0))
        sums[key] = (before[0] + held, before[1] + blocks)
    rows = [(tag, held, blocks) for tag, (held, blocks) in sums.items()]
    return sorted(rows, key=lambda each: -each[1])


def _advice(trace: Trace, results: Sequence[ReplayResult]) -> list[str]:
    from glake.trace.advice import advise
    from glake.trace.digest import digest

    # The figure that a report shows beside each piece is left out, because the text has it.
    return [f"{each.title}. {each.text}" for each in advise(digest(trace, results))]


def _require(name: str) -> None:
    try:
        require_policy(name)
    except RuntimeError as unknown:
        raise PlanError(str(unknown)) from unknown


def _kept(target: str, file: IO[bytes]) -> str:
    """The path of a copy of the trace, in a temporary file that is named after the target."""
    name = re.sub(r"[^\w.-]+", "-", Path(target).name).strip("-") or "job"
    handle, path = tempfile.mkstemp(prefix=f"glake-{name}-", suffix=".trace.gz")
    try:
        with os.fdopen(handle, "wb") as copy:
            file.seek(0)
            shutil.copyfileobj(file, copy)
    except BaseException:
        os.unlink(path)
        raise
    return path


def _named(policy: str) -> str:
    return _NAMES.get(policy, policy)


def _listed(names: Sequence[str], joined: str) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {joined} {names[-1]}"
