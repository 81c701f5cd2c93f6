"""Random machines: 1 to 3 sockets, with and without switches, NVLinks and joint limits."""

import random

from glake.platforms import Edge, Joint, Platform


def random_platform(seed: int) -> Platform:
    """A platform whose rates are no round multiples of each other. It depends only on the seed."""
    draw = random.Random(seed)
    rates: dict[str, float] = {}

    def link(a: str, b: str, low: float, high: float) -> None:
        rate = draw.uniform(low, high)
        rates[f"{a}>{b}"] = round(rate, 1)
        rates[f"{b}>{a}"] = round(rate * draw.choice([1.0, draw.uniform(0.7, 1.0)]), 1)

    sockets = draw.randint(1, 3)
    gpus = draw.randint(max(2, sockets), 6)
    homes = [*range(sockets), *sorted(draw.randrange(sockets) for _ in range(gpus - sockets))]
    homes.sort()
    shared: list[tuple[str, str]] = []
    switches = 0
    for socket in range(sockets):
        link(f"m{socket}", f"s{socket}", 15, 150)
        shared.append((f"m{socket}", f"s{socket}"))
        below = [gpu for gpu in range(gpus) if homes[gpu] == socket]
        while below:
            take, above = draw.randint(1, 2), f"s{socket}"
            if draw.random() < 0.5:
                above, switches = f"u{switches}", switches + 1
                link(f"s{socket}", above, 10, 40)
                shared.append((f"s{socket}", above))
            for gpu in below[:take]:
                link(above, f"g{gpu}", 8, 30)
                shared.append((above, f"g{gpu}"))
            del below[:take]
    for a in range(sockets):
        for b in range(a + 1, sockets):
            link(f"s{a}", f"s{b}", 7, 60)
    kind = draw.choice(["switch", "mesh", "none"])
    for a in range(gpus) if kind == "switch" else ():
        link(f"g{a}", "N", 150, 300)
    for a in range(gpus) if kind == "mesh" else ():
        for b in range(a + 1, gpus):
            if draw.random() < 0.6:
                link(f"g{a}", f"g{b}", 10, 60)
    joint = []
    for a, b in draw.sample(shared, draw.randint(0, min(3, len(shared)))):
        there, back = f"{a}>{b}", f"{b}>{a}"
        weights = ((there, 1.0), (back, round(draw.uniform(0.3, 1.0), 2)))
        joint.append(Joint(weights, round(rates[there] * draw.uniform(1.0, 1.3), 1)))
    edges = tuple(Edge(*name.split(">"), rate) for name, rate in rates.items())
    homes_of = tuple(tuple(g for g in range(gpus) if homes[g] == s) for s in range(sockets))
    return Platform(gpus, homes_of, edges, tuple(joint))
