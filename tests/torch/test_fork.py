"""Forked and spawned children beside the emulation read the parent's memory, never change it."""

import pytest


def test_a_forked_child_reads_writes_its_own_and_cannot_use_glake(passes):
    assert passes("fork.py", LIMIT="128MiB") == ["child ok", "parent ok"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers(passes, method):
    assert passes("workers.py", method) == ["30 batches a round, 0 mismatches, parent untouched"]


def test_a_fork_before_the_first_allocation_is_free(passes):
    assert passes("early_fork.py") == ["0 1000.0"]


def test_forks_while_threads_allocate(passes):
    assert passes("forks_beside_threads.py") == [f"{[0] * 8} [] 0"]


def test_a_fork_while_a_region_is_paused(passes):
    assert passes("fork_of_paused.py") == ["0 5000.0 True"]
