"""The command-line options that `glake replay` and `glake trace export` share."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click

from glake import config
from glake.trace.replay import MAX_CAPACITY, NEVER, policies, require_costs, require_policy

_UNITS = {unit.lower(): unit for unit in config.UNITS}
_GRANULE = 2 << 20

Capacity = Callable[[int], "int | None"]
"""From a trace's peak live bytes to the device's bytes; None: no limit."""


def parse_capacity(ctx: click.Context, param: click.Parameter, value: str) -> Capacity:
    """The callback of --capacity."""
    text = value.strip().lower()
    if text == "unlimited":
        return lambda live: None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    unit = match.group(2) if match else ""
    if match is None or (unit != "x" and unit not in _UNITS):
        raise click.BadParameter(
            f"{value!r}: give bytes (85899345920), a size (80GiB), "
            "a multiple of the peak live bytes (1.05x), or unlimited"
        )
    if unit == "x":
        number = Fraction(match.group(1))
        if not 0 < number <= 1000:
            raise click.BadParameter(f"{value!r} is not above 0x and at most 1000x")
        return _times_live(value, number)
    try:
        size = config.parse_bytes(match.group(1) + _UNITS[unit])
    except ValueError:
        size = 0
    if not _GRANULE <= size <= MAX_CAPACITY:
        raise click.BadParameter(
            f"{value!r} is not between 2 MiB (one granule) and 2^43 bytes (8 TiB)"
        )
    return lambda live: size


def _times_live(value: str, number: Fraction) -> Capacity:
    def capacity(live: int) -> int:
        size = int(live * number)
        if live > MAX_CAPACITY:  # no device holds this much: each policy will say so
            return MAX_CAPACITY
        if live and not _GRANULE <= size <= MAX_CAPACITY:
            raise click.UsageError(
                f"--capacity {value} of {live:,} live bytes is {size:,} bytes: "
                "a device has between 2 MiB (one granule) and 2^43 bytes (8 TiB)"
            )
        return max(size, _GRANULE)

    return capacity


def parse_complete_after(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """The callback of --complete-after."""
    text = value.strip().lower()
    if text == "never":
        return NEVER
    if not re.fullmatch(r"\d{1,18}", text):
        raise click.BadParameter(f"{value!r}: give a count of events, 0 or above, or never")
    return int(text)


def parse_policies(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    """The callback of --policy: names separated by commas, or none if there is no default."""
    if value is None:
        return []
    names = list(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    try:
        for name in names:
            require_policy(name)
    except RuntimeError as unknown:
        raise click.BadParameter(str(unknown)) from unknown
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(policies())}")
    return names


def parse_costs(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """The callback of --costs. None if it is not given."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    try:
        return require_costs(names)
    except (ValueError, RuntimeError) as unknown:
        raise click.BadParameter(str(unknown)) from unknown


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --capacity and --complete-after, which describe the device of a replay, to a command."""
    command = click.option(
        "--complete-after",
        default="512",
        show_default=True,
        callback=parse_complete_after,
        metavar="EVENTS",
        help="Events until work enqueued on a stream completes, or never.",
    )(command)
    return click.option(
        "--capacity",
        default="unlimited",
        show_default=True,
        callback=parse_capacity,
        metavar="BYTES",
        help="Memory of the device: bytes, 80GiB, 1.05x (times the peak live bytes), or "
        "unlimited (1 TiB, more than any has).",
    )(command)
