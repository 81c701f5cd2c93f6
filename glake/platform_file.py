"""Reads a platforms file. It checks every field; errors name the file, the field and what to do."""

import functools
import json
import re
from pathlib import Path
from typing import Any, NoReturn

from glake import library_path
from glake.errors import InvalidOption, InvalidPlatform
from glake.hints import nearest
from glake.platforms import COPY_US, Edge, Joint, Platform

MOST_GPUS = 16  # as in csrc/plan/topology.h
MOST_NODES = 1024  # as in csrc/plan/topology.cpp: the most that Linux can have
MOST_RATE = 1e5  # GB/s; a larger value was probably meant in another unit
_FIELDS = ("gpus", "sockets", "edges", "joint", "assumed", "numa_nodes", "bounds", "per_copy_us")
_NEEDED = ("gpus", "sockets", "edges")
_HINT = "docs/topology.md describes the format"


def _refuse(where: str, field: str, problem: str, way_out: str = _HINT) -> NoReturn:
    raise InvalidPlatform(f"{where}: {field}: {problem}; {way_out}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def preset_file() -> Path:
    """The platforms file installed with glake."""
    return library_path().with_name("platforms.json")


def load_platforms(path: str | None = None) -> dict[str, Platform]:
    """The platforms of a file by name (default: the file installed with glake).

    Raises InvalidPlatform, an InvalidOption, which says which field is wrong and what it takes.
    """
    file = Path(path) if path else preset_file()
    try:
        facts = file.stat()
    except OSError:
        return dict(_read(file, None))  # raises an error that says what is wrong
    # It is cached, because every plan reads it. A file that has changed counts as another one.
    return dict(_read(file, (facts.st_ino, facts.st_mtime_ns, facts.st_size)))


@functools.lru_cache(maxsize=8)
def _read(file: Path, version: tuple[int, ...] | None) -> dict[str, Platform]:
    return read_file(file)


def read_file(file: Path) -> dict[str, Platform]:
    """The platforms in `file` by name. If the file is one bare platform, its name is the file's
    stem.

    Raises InvalidPlatform if the file cannot be read or is no JSON, or if a field does not take its
    value.
    """
    where = f"platforms file {file}"
    content = _load(file, where)
    if not isinstance(content, dict):
        _refuse(where, "top level", f"{_shown(content)} is no JSON object")
    if any(name in content for name in _NEEDED):
        return {file.stem: parse(content, where)}
    copy_us = _copy_us(content, where)
    rows = {name: row for name, row in content.items() if not name.startswith("_")}
    rows.pop("per_copy_us", None)
    if not rows:
        _refuse(where, "top level", "it has no platform")
    platforms = {}
    for name, row in rows.items():
        if not isinstance(row, dict):
            _refuse(where, name, f"{_shown(row)} is no platform, which is a JSON object")
        platforms[name] = parse({"per_copy_us": copy_us, **row}, f"{where}: {name}")
    return platforms


def _load(file: Path, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            _refuse(where, twice, "given twice", "keep one")
        return found

    def no_number(text: str) -> NoReturn:
        _refuse(where, "numbers", f"{text} is none", "give a finite number")

    try:
        text = file.read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidPlatform(f"{where} cannot be read: {reason}") from error
    except json.JSONDecodeError as error:
        spot = f"line {error.lineno} column {error.colno}"
        raise InvalidPlatform(f"{where}: {spot}: {error.msg}; it is no JSON") from error
    except InvalidOption:
        raise
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidPlatform(f"{where}: no JSON text: {error}") from error


def parse(row: dict[str, Any], where: str) -> Platform:
    """One platform from its JSON object. Messages begin with `where`. Raises InvalidPlatform."""
    for name in _NEEDED:
        if name not in row:
            _refuse(where, name, "missing")
    unknown = [name for name in row if name not in _FIELDS and not name.startswith("_")]
    for name in unknown:
        if near := nearest(name, _FIELDS, cutoff=0.7):
            _refuse(where, name, "no such field", f"did you mean {near!r}?")
    gpus = _count(row["gpus"], where)
    platform = Platform(
        gpus=gpus,
        sockets=_sockets(row["sockets"], gpus, where),
        edges=_edges(row["edges"], where),
        joint=(),
        assumed=_texts(row.get("assumed", []), where, "assumed")
        + tuple(f"field {name!r} of the file was not understood and ignored" for name in unknown),
        numa_nodes=_numa_nodes(row.get("numa_nodes", []), len(row["sockets"]), where),
        copy_us=_copy_us(row, where),
    )
    _check_nodes(platform, where)
    _check_reach(platform, where)
    joint = _joint(row.get("joint", []), {edge.name for edge in platform.edges}, where)
    return Platform(**{**vars(platform), "joint": joint})


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, where: str, field: str, unit: str, most: float = MOST_RATE) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(where, field, f"{_shown(value)} is no number", f"give {unit}")
    if not 0 < value <= most:
        _refuse(
            where, field, f"{_shown(value)} is not above 0 and at most {most:g}", f"give {unit}"
        )
    return float(value)


def _copy_us(row: dict[str, Any], where: str) -> float:
    value = row.get("per_copy_us", COPY_US)
    if value == 0 and not isinstance(value, bool):
        return 0.0
    return _number(value, where, "per_copy_us", "microseconds", 1e6)


def _count(value: Any, where: str) -> int:
    if not _is_integer(value) or not 1 <= value <= MOST_GPUS:
        _refuse(where, "gpus", f"{_shown(value)} is no whole number from 1 to {MOST_GPUS}")
    return int(value)


def _list(value: Any, where: str, field: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, field, f"{_shown(value)} is no list")
    return value


def _texts(value: Any, where: str, field: str) -> tuple[str, ...]:
    texts = _list(value, where, field)
    for text in texts:
        if not isinstance(text, str):
            _refuse(where, field, f"{_shown(text)} is no text")
    return tuple(texts)


def _sockets(value: Any, gpus: int, where: str) -> tuple[tuple[int, ...], ...]:
    sockets = [_list(each, where, "sockets") for each in _list(value, where, "sockets")]
    if not sockets:
        _refuse(where, "sockets", "there is none", "give a list of the GPUs of each socket")
    seen: set[int] = set()
    for gpu in (gpu for each in sockets for gpu in each):
        if not _is_integer(gpu) or not 0 <= gpu < gpus:
            _refuse(where, "sockets", f"{_shown(gpu)} is no GPU", f"they are 0 to {gpus - 1}")
        if gpu in seen:
            _refuse(where, "sockets", f"GPU {gpu} is there twice", "list it on one socket")
        seen.add(gpu)
    for gpu in range(gpus):
        if gpu not in seen:
            _refuse(where, "sockets", f"GPU {gpu} is on none", "list it on one")
    return tuple(tuple(each) for each in sockets)


def _numa_nodes(value: Any, sockets: int, where: str) -> tuple[tuple[int, ...], ...]:
    field = "numa_nodes"
    rows = [_list(each, where, field) for each in _list(value, where, field)]
    if rows and len(rows) != sockets:
        _refuse(where, field, f"{len(rows)} lists for {sockets} sockets", "give one a socket")
    nodes = [node for each in rows for node in each]
    for node in nodes:
        if not _is_integer(node) or not 0 <= node < MOST_NODES:
            _refuse(where, field, f"{_shown(node)} is no NUMA node", f"take 0 to {MOST_NODES - 1}")
        if nodes.count(node) > 1:
            _refuse(where, field, f"{node} is no NUMA node of one socket")
    return tuple(tuple(each) for each in rows)


def _edges(value: Any, where: str) -> tuple[Edge, ...]:
    found: dict[str, Edge] = {}
    for index, row in enumerate(_list(value, where, "edges")):
        field = f"edges[{index}]"
        if not (
            isinstance(row, list) and len(row) == 3 and all(isinstance(x, str) for x in row[:2])
        ):
            _refuse(where, field, f"{_shown(row)} is not [from, to, GB/s]")
        name = f"{row[0]}>{row[1]}"
        rate = _number(row[2], where, f"{field} {name}", "GB/s (1e9 bytes a second)")
        if name in found:
            _refuse(where, field, f"{name} is there twice", "add the rates up in one edge")
        found[name] = Edge(row[0], row[1], rate)
    return tuple(found.values())


# The kinds of nodes that a link may join, in either direction: the first letters of their names
# (see Platform). An m may be joined only to the s of the same number.
_LINKS = {"ms", "ss", "su", "uu", "gs", "gu", "gg", "Ng"}


def _check_nodes(platform: Platform, where: str) -> None:
    for edge in platform.edges:
        for node in (edge.source, edge.target):
            match = re.fullmatch(r"N|([msgu])(0|[1-9]\d{0,3})", node)
            if match is None:
                _refuse(
                    where,
                    f"edge {edge.name}",
                    f"{node!r} is no node",
                    "nodes are mS, sS, uK, gI or N",
                )
            limits = {"m": len(platform.sockets), "s": len(platform.sockets), "g": platform.gpus}
            if match[1] in limits and int(match[2]) >= limits[match[1]]:
                most = limits[match[1]] - 1
                _refuse(where, f"edge {edge.name}", f"no {node}", f"the last is {match[1]}{most}")
        kinds = "".join(sorted(edge.source[0] + edge.target[0]))
        same = edge.source[1:] == edge.target[1:]
        if kinds not in _LINKS or edge.source == edge.target or (kinds == "ms" and not same):
            _refuse(where, f"edge {edge.name}", "no link joins these two nodes")


def _check_reach(platform: Platform, where: str) -> None:
    """Checks that each GPU reaches its own socket without passing another GPU, and reaches all
    memory."""
    for edges, back in ((platform.edges, False), (_reversed(platform.edges), True)):
        ahead: dict[str, list[str]] = {}
        for edge in edges:
            ahead.setdefault(edge.source, []).append(edge.target)
        for socket, gpus in enumerate(platform.sockets):
            root = f"s{socket}"
            if root not in ahead.get(f"m{socket}", []):
                name = f"{root}>m{socket}" if back else f"m{socket}>{root}"
                _refuse(where, "edges", f"socket {socket} has no {name}", "add the DRAM edge")
            own, anywhere = _reach(ahead, root, "u"), _reach(ahead, root, "us")
            for gpu in range(platform.gpus):
                missing = f"g{gpu} and host memory m{socket} are not joined by s and u nodes"
                way = "from GPU to host" if back else "from host to GPU"
                if f"g{gpu}" not in anywhere:
                    _refuse(where, "edges", f"{missing} {way}", "add the missing edge")
                if gpu in gpus and f"g{gpu}" not in own:
                    _refuse(where, "sockets", f"g{gpu} is listed on socket {socket}, not under it")


def _reversed(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    return tuple(Edge(edge.target, edge.source, edge.gb_per_s) for edge in edges)


def _reach(ahead: dict[str, list[str]], start: str, through: str) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        for node in ahead.get(todo.pop(), []):
            if node not in found:
                found.add(node)
                if node[0] in through:
                    todo.append(node)
    return found


def _joint(value: Any, edges: set[str], where: str) -> tuple[Joint, ...]:
    found = []
    for index, row in enumerate(_list(value, where, "joint")):
        field = f"joint[{index}]"
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], dict) and row[0]):
            _refuse(where, field, f"{_shown(row)} is not [{{edge: weight}}, GB/s]")
        for name in row[0]:
            if name not in edges:
                _refuse(where, field, f"no edge {name!r}", 'name edges as "g0>N"')
        weights = tuple(
            (name, _number(weight, where, f"{field} {name}", "a weight"))
            for name, weight in row[0].items()
        )
        found.append(Joint(weights, _number(row[1], where, field, "GB/s (1e9 bytes a second)")))
    return tuple(found)
