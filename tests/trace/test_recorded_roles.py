"""Roles of recorded jobs are right to the byte, by arithmetic over their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from glake.trace.format import read_events
from glake.trace.record import record
from glake.trace.replay import load_trace
from glake.trace.roles import by_role

# plan_jobs.Tiny: embedding and head of 100 words, two blocks of norm, up and down.
WIDTH, WORDS = 64, 100
BLOCK = 2 * WIDTH + 2 * 4 * WIDTH * WIDTH + 4 * WIDTH + WIDTH
TINY = 2 * WORDS * WIDTH + WORDS + 2 * BLOCK


@pytest.fixture
def roles_at_most(tmp_path, monkeypatch):
    """roles_at_most(function, role, ...): bytes by role where `role` holds most in step 1."""
    monkeypatch.chdir(Path(__file__).parent)

    def run(function, role, **request):
        path = tmp_path / f"{function}.trace.gz"
        record(f"plan_jobs:{function}", path, steps=2, scratch="none", **request)
        trace = load_trace(path)
        step = range(trace.step_spans()[-1]["first_event"], trace.events)
        found = [dict(by_role(trace.holders(i), trace.lasting(i))) for i in step]
        return max(found, key=lambda held: held.get(role, 0))

    return run


def test_adamw_keeps_two_moments_and_borrows_one(roles_at_most):
    held = roles_at_most("training", "optimizer temporaries")
    assert held["parameters and buffers"] == 4 * TINY
    assert held["optimizer state"] == 8 * TINY
    # The square roots, and a scale that clipping leaves until the update is done.
    assert 0 <= held["optimizer temporaries"] - 4 * TINY <= 64
    assert "gradient buckets and communication buffers" not in held


def tags_of_empty(path):
    """The tags of each size of aten.empty."""
    tags = {}
    for event in read_events(path):
        if event.op == "a" and event.tag.endswith(";aten.empty"):
            tags.setdefault(event.bytes, set()).add(event.tag)
    return tags


def test_an_update_ends_where_its_optimizer_does(roles_at_most, tmp_path):
    held = roles_at_most("accumulating", "other")
    assert held["other"] == 4 * 9000 + 2 * 4 * 7000
    # Momentum of the weight and two moments of the bias; its count of steps is on the host.
    assert held["optimizer state"] == 4 * (64 * 64 + 2 * 64)
    assert tags_of_empty(tmp_path / "accumulating.trace.gz") == {
        4 * 100 * 64: {"forward;aten.empty"},  # also the second batch, after a backward
        4 * 300: {"optimizer;aten.empty"},  # between two optimizers
        4 * 7000: {"step;aten.empty"},
        4 * 9000: {"step;aten.empty"},
    }


def test_three_updates_in_a_step(roles_at_most, tmp_path):
    held = roles_at_most("adversarial", "other")
    assert held["other"] == 4 * 9000
    assert not [role for role in held if "optimizer" in role]
    assert tags_of_empty(tmp_path / "adversarial.trace.gz") == {
        4 * 50 * 64: {"forward;aten.empty"},
        4 * 9000: {"step;aten.empty"},
    }


def test_ddp_has_its_gradients_once_more_in_buckets(roles_at_most):
    held = roles_at_most("replicated", "gradients and backward's own", world=2)
    assert held["gradient buckets and communication buffers"] == 4 * TINY
    assert held["parameters and buffers"] == 4 * TINY
    assert "optimizer state" not in held  # plain SGD


def test_flat_buffers_are_what_the_job_says_and_masters_the_optimizers(roles_at_most):
    held = roles_at_most("flat", "optimizer temporaries")
    assert held["parameters and buffers"] == 2 * 1000
    assert held["master weights"] == 4 * 1000
    assert held["gradients and backward's own"] == 2 * 1000
    assert held["gradient buckets and communication buffers"] == 2 * 3500 + 512
    assert held["optimizer state"] == 2 * 4 * 1000
