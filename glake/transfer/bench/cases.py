"""The transfers that are measured on a platform, by name: single copies, pairs, all GPUs at once,
and copies that are queued in one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from glake.platforms import Platform
from glake.transfer.topology.routes import Routes, Way, parents

# The places of host memory: all of it on the GPU's socket; equal parts on all sockets, which change
# in stripes; equal parts on all sockets, which change every page.
LOCAL, INTERLEAVED, PAGES = "local", "interleaved", "pages"
_MOST_PAIRS = 8
_QUEUED, _QUEUED_EACH = 8, 4  # copies in the stream of one GPU, and of each of several
_Pair = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """Copies that start together, as (source, destination). Each is "cpu" or "cuda:N".

    Each has a stream of its own, in which it is made `queued` times.
    """

    transfer: str
    copies: tuple[tuple[str, str], ...]
    host: str
    queued: int = 1

    @property
    def together(self) -> bool:
        """Whether the case has more than one stream."""
        return len(self.copies) > 1


def cases(platform: Platform, pages: bool = False, only: Sequence[str] = ()) -> list[Case]:
    """Every transfer measured on a platform; `only`: those whose name is like one of these patterns
    ("h2d*").

    h2d, d2h and bidir are copies of GPU 0. p2p:A>B is the first pair of GPUs of each kind of route.
    h2d:pair is GPUs 0 and 1 at once. h2d:pair:A,B is the first of each further kind of pair
    (_pairs). all-h2d and all-d2h are all GPUs at once. Cases that use host memory come once for
    each place of it. h2d:queue and d2h:queue are copies of GPU 0 that one thread enqueues in one
    stream, as a loop over a model's tensors does. all-h2d:queue is such a loop over a model whose
    layers are on all GPUs in turn. `pages` adds memory that changes socket every page.
    """
    hosts = [LOCAL, INTERLEAVED] + ([PAGES] if pages else [])
    gpus = range(platform.gpus)
    into = {gpu: ("cpu", f"cuda:{gpu}") for gpu in gpus}
    out = {gpu: (f"cuda:{gpu}", "cpu") for gpu in gpus}
    shapes = {"h2d": (into[0],), "d2h": (out[0],), "bidir": (into[0], out[0])}
    for number, (a, b) in enumerate(_pairs(platform)):
        shapes["h2d:pair" if number == 0 else f"h2d:pair:{a},{b}"] = (into[a], into[b])
    if platform.gpus > 1:
        shapes["all-h2d"] = tuple(into.values())
        shapes["all-d2h"] = tuple(out.values())
    found = [Case(name, copies, host) for name, copies in shapes.items() for host in hosts]
    for name, queued in (("h2d", _QUEUED), ("d2h", _QUEUED), ("all-h2d", _QUEUED_EACH)):
        if name in shapes:
            found += [Case(f"{name}:queue", shapes[name], host, queued) for host in hosts]
    for a, b in _peers(platform):
        found.append(Case(f"p2p:{a}>{b}", ((f"cuda:{a}", f"cuda:{b}"),), LOCAL))
    wanted = only or ("*",)
    return [each for each in found if any(fnmatchcase(each.transfer, one) for one in wanted)]


def _pairs(platform: Platform) -> list[_Pair]:
    """Pairs of GPU 0 and another GPU: the first that share a PCIe switch, a socket, or nothing."""
    tree = parents(platform)

    def kind(pair: _Pair) -> object:
        a, b = pair
        return platform.socket_of(a) == platform.socket_of(b), _share(tree, a, b)

    return _firsts(((0, gpu) for gpu in range(1, platform.gpus)), kind)


def _peers(platform: Platform) -> list[_Pair]:
    """The first pair of each kind of route. A kind consists of the way, the NVLinks' rate, and what
    the two GPUs share."""
    routes, tree = Routes(platform), parents(platform)
    gpus = range(platform.gpus)

    def kind(pair: _Pair) -> tuple[object, ...]:
        a, b = pair
        way = routes.way(a, b)
        linked = way in (Way.NVLINK, Way.NVSWITCH)
        near = platform.socket_of(a) == platform.socket_of(b)
        rate = routes.rate(f"g{a}", f"g{b}") if linked else 0.0
        return way, near, linked and _share(tree, a, b), rate

    every = [(a, b) for a in gpus for b in gpus if a != b]
    found = _firsts(every, kind)
    # If every link has its own rate, kinds that differ in more come first.
    plainly = _firsts(every, lambda pair: kind(pair)[:3])
    return sorted((plainly + [pair for pair in found if pair not in plainly])[:_MOST_PAIRS])


def _firsts(pairs: Iterable[_Pair], kind: Callable[[_Pair], object]) -> list[_Pair]:
    found: dict[object, _Pair] = {}
    for pair in pairs:
        found.setdefault(kind(pair), pair)
    return list(found.values())


def _share(tree: dict[str, str], a: int, b: int) -> bool:
    """Whether a PCIe switch is above both GPUs."""
    return bool(set(_switches(tree, f"g{a}")) & set(_switches(tree, f"g{b}")))


def _switches(tree: dict[str, str], node: str) -> Iterator[str]:
    while node in tree:
        node = tree[node]
        if node[0] == "u":
            yield node
