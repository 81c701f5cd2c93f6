"""Properties of the advice about allocators: it follows from the figures beside it.

The figures are drawn at random, near each other and far apart.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_report_digest import GIB, job, result

from glake.trace.allocator_advice import compared
from glake.units import micros, size

OWN, OTHERS = ("glake", "compact"), ("native", "expandable")
SHOWN = {
    "peak_physical_bytes": size,
    "min_capacity_bytes": size,
    "driver_us_per_step": micros,
}

near = st.integers(950, 1050).map(lambda x: x * GIB // 16)
held = st.one_of(near, st.integers(GIB, 79 * GIB))
times = st.one_of(st.just(0.0), st.floats(0, 4000), st.floats(0, 4e5))
figures = st.fixed_dictionaries(
    {
        "peak_physical_bytes": held,
        "min_capacity_bytes": st.one_of(st.none(), held),
        "driver_us_per_step": st.one_of(st.none(), times),
    }
)


def better(one, other):
    """The figures in which ``one`` is better than ``other`` as a reader sees them."""
    return [
        key
        for key, shown in SHOWN.items()
        if None not in (one[key], other[key])
        and one[key] < other[key]
        and shown(one[key]) != shown(other[key])
    ]


@settings(max_examples=400, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(OWN + OTHERS, figures)), st.booleans())
def test_what_is_said_is_what_is_shown(drawn, limited):
    # All fit this capacity, and the default leaves no room to spare in it.
    capacity = max(one["peak_physical_bytes"] for one in drawn.values()) if limited else None
    policies = [result(name, capacity_bytes=capacity, **one) for name, one in drawn.items()]
    for advice in compared(job(*policies, capacity=capacity)):
        ours = next(name for name in OWN if advice.text.find(name) >= 0 or name in advice.title)
        ours = "compact" if "compact" in advice.title + advice.text else ours
        theirs = next(name for name in OTHERS if name in advice.title)
        gains = better(drawn[ours], drawn[theirs])
        losses = better(drawn[theirs], drawn[ours])
        if advice.level == "saving":
            assert gains, advice
        elif "each is better at something" in advice.title:
            assert gains and losses, advice
        else:
            assert f"{theirs} does this job better than {ours}" == advice.title
            assert losses, advice
            assert all(better(drawn[theirs], drawn[own]) for own in OWN), advice
            if "better in neither memory nor driver time" in advice.text:
                assert not gains, advice
            else:
                for key in gains:
                    assert SHOWN[key](drawn[ours][key]) in advice.text, (key, advice)


@pytest.mark.parametrize("capacity", [None, int(2.44 * GIB)])
def test_a_little_less_memory_is_not_nothing(capacity):
    ours = result("compact", peak_physical_bytes=int(2.38 * GIB), driver_us_per_step=9600.0)
    theirs = result("expandable", peak_physical_bytes=int(2.42 * GIB), driver_us_per_step=1300.0)
    (found,) = compared(job(ours, theirs, capacity=capacity))
    assert (
        "gains too little to matter: it holds up to 2.38 GiB (expandable: 2.42 GiB)" in found.text
    )
    assert "Stay with expandable" in found.text


def test_of_glakes_policies_the_one_with_most_to_say_for_it_is_told():
    worse = result("compact", peak_physical_bytes=70 * GIB, driver_us_per_step=9600.0)
    best = result("glake", peak_physical_bytes=71 * GIB, driver_us_per_step=0.0)
    theirs = result("expandable", peak_physical_bytes=70 * GIB, driver_us_per_step=2300.0)
    (found,) = compared(job(worse, best, theirs))
    assert found.title == "expandable spends more time in the driver than glake"


@pytest.mark.parametrize("beside", ["native", "glake"])
def test_what_compact_costs_stands_beside_what_it_saves(beside):
    """The cost is named although it is too small to decide against compact, and is compared with
    policy glake."""
    slow = 900.0 if beside == "native" else 9600.0
    ours = result("compact", peak_physical_bytes=66 * GIB, driver_us_per_step=slow)
    usual = result("glake", peak_physical_bytes=72 * GIB, driver_us_per_step=120.0)
    theirs = result(
        "native",
        peak_physical_bytes=76 * GIB,
        driver_us_per_step=0.0 if beside == "native" else slow,
    )
    both = (ours, theirs) if beside == "native" else (ours, usual, theirs)
    (found,) = compared(job(*both))
    assert found.level == "saving" and "GLAKE_POLICY=compact" in found.text
    assert f"{micros(slow)} a step" in found.text
    other = "(native: 0" if beside == "native" else f"(glake: {micros(120.0)}; it holds up to 72"
    assert other in found.text


def test_another_allocator_that_does_as_well_is_named():
    """On the sample glake was once recommended over native, although expandable did as well."""
    figures = {"native": (16, 251.0), "expandable": (14, 202.0), "glake": (14, 1100.0)}
    policies = [
        result(name, peak_physical_bytes=held * GIB, driver_us_per_step=us)
        for name, (held, us) in figures.items()
    ]
    (advice,) = compared(job(*policies, capacity=None))
    assert advice.title.startswith("native holds")
    assert "No worse than glake here: expandable" in advice.text and "202 us" in advice.text
    policies[1] = result("expandable", peak_physical_bytes=15 * GIB, driver_us_per_step=202.0)
    assert all("No worse" not in each.text for each in compared(job(*policies, capacity=None)))
