"""Forked and spawned children beside the emulation: the parent's memory is read, never touched."""

import pytest


def test_a_forked_child_reads_writes_its_own_and_cannot_use_glake(passes):
    assert passes("fork.py") == ["child ok", "parent ok"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers(passes, method):
    assert passes("workers.py", method) == ["30 batches a round, 0 mismatches, parent untouched"]


def test_a_fork_before_the_first_allocation_is_free(passes):
    program = """
        import os, torch, glake
        child = os.fork()
        total = torch.ones(1000).sum().item()
        if child == 0:
            os._exit(total != 1000)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), total)
    """
    assert passes(program) == ["0 1000.0"]
