"""Keeps measured rates between processes, by a hash of their topology.

Each topology has a small file under the user's cache directory. Only the user can read it. It is
written whole or not at all. A file that cannot be understood is ignored with a warning. Results for
a simulated machine are kept in memory only, because each process has its own simulated machine.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glake import files
from glake.platforms import Joint
from glake.transfer.topology.calibration import Calibration
from glake.transfer.topology.topology import Topology

_simulated: dict[tuple[int, str], Calibration] = {}
_VERSION = 3  # of the file's form and of the probe's method


def directory(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "glake" / "topology"


@functools.lru_cache(maxsize=16)
def key(topology: Topology) -> str:
    """A hash of the devices and the whole graph as discovered, estimates included."""
    facts = [_VERSION, topology.devices, dataclasses.asdict(topology.platform)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _machine(topology: Topology) -> tuple[int, str]:
    from glake import simcuda

    return simcuda.resets(), key(topology)


def store(topology: Topology, found: Calibration, where: Path | None = None) -> Path | None:
    """Keeps the results of a probe. Returns the file's path. If the file cannot be written, warns
    and returns None.

    A simulated machine (a topology without devices) has no file: None.
    """
    if not topology.devices and where is None:
        _simulated[_machine(topology)] = found
        return None
    where = where or directory()
    content = {
        "version": _VERSION,
        "topology": key(topology),
        "rates": dict(found.rates),
        "joint": [[dict(joint.weights), joint.gb_per_s] for joint in found.joint],
        "notes": list(found.notes),
        "together": sorted(sorted(each) for each in found.together),
        "date": found.date,
    }
    file = where / f"{key(topology)}.json"
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_whole(file, json.dumps(content))
    except OSError as error:
        warnings.warn(f"glake: measured rates not kept in {where}: {error}", stacklevel=2)
        return None
    return file


def load(topology: Topology, where: Path | None = None) -> Calibration | None:
    """Loads the results of an earlier probe of this same topology. None if there are none that can
    be used."""
    if not topology.devices and where is None:
        return _simulated.get(_machine(topology)) if _simulated else None
    file = (where or directory()) / f"{key(topology)}.json"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        warnings.warn(f"glake: measured rates in {file} ignored: {error}", stacklevel=2)
        return None
    try:
        return _understood(json.loads(text), topology)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"glake: measured rates in {file} ignored ({reason}); `glake topo --probe` replaces it",
            stacklevel=2,
        )
        return None


def _understood(content: Any, topology: Topology) -> Calibration:
    if content["version"] != _VERSION or content["topology"] != key(topology):
        raise ValueError("of another version or topology")
    names = {edge.name for edge in topology.platform.edges}
    rates = {name: _rate(rate) for name, rate in content["rates"].items()}
    joint = tuple(
        Joint(tuple((name, _rate(weight)) for name, weight in weights.items()), _rate(limit))
        for weights, limit in content["joint"]
    )
    notes, date = tuple(content["notes"]), content["date"]
    together = frozenset(frozenset(each) for each in content["together"])
    named = {*rates, *(name for each in joint for name, _ in each.weights)}.union(*together)
    if not named <= names or not all(isinstance(text, str) for text in (*notes, date)):
        raise ValueError("an edge the topology does not have, or a note that is no text")
    return Calibration(rates, joint, notes, together, date)


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} is not above 0")
    return float(value)
