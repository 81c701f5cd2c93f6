"""Forked and spawned children beside the emulation: the parent's memory is read, never touched."""

import pytest


def test_a_forked_child_reads_writes_its_own_and_cannot_use_glake(passes):
    assert passes("fork.py", LIMIT="128MiB") == ["child ok", "parent ok"]


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


def test_forks_while_threads_allocate(passes):
    program = """
        import os, threading, torch, glake
        from glake.allocator import emulation
        kept = [torch.full((50_000,), i) for i in range(20)]
        # Once before the threads: torch sets up each operator at its first use, and a child forked
        # in the middle of that would wait for it for ever, with or without glake.
        assert bool((kept[1] == 1).all())
        done, wrong = threading.Event(), []

        def churn(seed):
            turn = 0
            while not done.is_set():
                turn += 1
                tensor = torch.full((1000 * (turn % 50 + 1),), seed * turn)
                if not bool((tensor == seed * turn).all()):
                    wrong.append(turn)

        threads = [threading.Thread(target=churn, args=(seed,)) for seed in (1, 2, 3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                right = all(bool((tensor == i).all()) for i, tensor in enumerate(kept))
                os._exit(0 if right and emulation.counters().state == "forked" else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()
        for thread in threads:
            thread.join()
        print(codes, wrong, emulation.counters().failed_frees)
    """
    assert passes(program) == [f"{[0] * 8} [] 0"]


def test_a_fork_while_a_region_is_paused(passes):
    program = """
        import os, torch, glake
        with glake.region("weights"):
            paused = torch.full((1 << 20,), 3.0)
        other = torch.full((1000,), 5.0)
        glake.pause("weights")
        child = os.fork()
        if child == 0:
            other.add_(1)
            os._exit(0 if torch.ones(1000).sum() == 1000 and other.sum() == 6000 else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        glake.resume("weights")
        print(status, other.sum().item(), paused.sum().item() == 3 << 20)
    """
    assert passes(program) == ["0 5000.0 True"]
