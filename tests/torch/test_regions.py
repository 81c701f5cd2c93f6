"""Regions under torch's emulation: weights paused between steps, and what is refused."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "regions.md"


def test_the_example_runs(passes):
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    (line,) = passes(example[1], on=False)
    assert "name='weights', device=0, state='paused', to='host'" in line


def test_training_goes_on_as_if_nothing_had_been_paused(passes):
    passes(
        """
        import tempfile, torch, glake

        def losses(pauses):
            torch.manual_seed(1)
            with glake.region("weights"):
                model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 1))
            optimizer = torch.optim.AdamW(model.parameters())
            addresses = [p.data_ptr() for p in model.parameters()]
            told = []
            for step in range(6):
                if pauses:
                    to = ("host", "disk")[step % 2]
                    folder = tempfile.gettempdir() if to == "disk" else None
                    given = glake.pause("weights", to=to, folder=folder)
                    (region,) = [r for r in glake.regions() if r.name == "weights"]
                    assert region.state == "paused" and region.to == to and region.reserved == 0
                    assert given == region.paused > 0 and region.saved >= region.live
                    assert glake.stats()["glake.paused_bytes"] == given
                    torch.ones(1 << 20)  # others go on
                    assert glake.resume("weights") == given
                loss = model(torch.randn(8, 256)).square().mean()
                loss.backward()
                with glake.region("optimizer"):
                    optimizer.step()
                optimizer.zero_grad()
                if pauses:
                    glake.pause("optimizer")
                    glake.resume("optimizer", verify=False)
                told.append(loss.item())
            assert addresses == [p.data_ptr() for p in model.parameters()]
            glake.check()
            return told

        assert losses(True) == losses(False)
        """
    )


def test_refusals_name_the_region(passes):
    passes(
        """
        import torch, glake

        def fails(kind, text, call):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"no {kind.__name__}")

        with glake.region("first"), glake.contiguous():  # the first of all: glake stays on
            fails(RuntimeError, "cannot be of region", lambda: torch.ones(1))
        fails(glake.InvalidArgument, "no region 'cache'", lambda: glake.pause("cache"))
        with glake.region("cache", budget="8MiB"):
            kept = torch.ones(1 << 20)
            with glake.region("inner"):
                inner = torch.ones(1 << 18)
            fails(RuntimeError, 'region "cache" on cuda:0 holds', lambda: torch.ones(2 << 20))
        outside = torch.ones(2 << 20)
        sizes = {r.name: r.live for r in glake.regions()}
        assert sizes == {"cache": 4 << 20, "inner": 1 << 20}, sizes
        fails(glake.InvalidArgument, "did you mean 'cache'?", lambda: glake.pause("caches"))
        fails(glake.InvalidDevice, "there are", lambda: glake.pause("cache", device=99))
        fails(glake.InvalidArgument, "no control characters", glake.region("a\\0b").__enter__)
        fails(glake.InvalidArgument, "not to 'tape'", lambda: glake.pause("cache", to="tape"))
        fails(glake.errors.WrongType, "by a string", lambda: glake.pause("cache", to=["host"]))
        fails(glake.errors.WrongType, "not 3", lambda: glake.pause("cache", to="disk", folder=3))
        fails(glake.InvalidArgument, "needs a folder", lambda: glake.pause("cache", to="disk"))
        fails(glake.RegionRefused, "/no/such", lambda: glake.pause("cache", "disk", "/no/such"))
        fails(glake.RegionRefused, "on no device", lambda: glake.resume("cache"))
        glake.pin(kept.data_ptr())
        fails(glake.RegionRefused, "are pinned", lambda: glake.pause("cache"))
        glake.unpin(kept.data_ptr())
        glake.pause("cache")
        fails(glake.RegionRefused, "paused already", lambda: glake.pause("cache"))
        with glake.region("cache"):
            way_out = 'region "cache" on cuda:0 is paused: glake.resume("cache")'
            fails(RuntimeError, way_out, lambda: torch.ones(9))
            fails(glake.RegionPaused, way_out, lambda: glake.empty(9))
        segments = glake.snapshot()["segments"]
        assert any(s["paused"] for s in segments)
        assert sum(s["total_size"] for s in segments if not s["paused"]) == (
            glake.stats()["reserved_bytes.all.current"]
        )
        del inner
        glake.resume("cache")
        assert bool((kept == 1).all()) and bool((outside == 1).all())
        glake.pause("cache", to="discard")
        del kept  # nothing is left to be resumed
        for unbounded in (0, "0"):
            with glake.region("cache", budget=unbounded):
                torch.ones(4 << 20)
        fails(TypeError, "a string", lambda: glake.region(3).__enter__())
        fails(glake.InvalidArgument, "quotes", lambda: glake.region('a"b').__enter__())
        fails(glake.InvalidArgument, "budget", lambda: glake.region("a", "much").__enter__())
        """
    )


def test_a_copy_of_paused_memory_is_refused_and_nothing_moves(passes):
    """Either end, small and large, batches, blocks, files and the offloader's pool."""
    passes(
        """
        import os, tempfile, numpy, torch, glake
        import glake.transfer as t

        with glake.region("weights"):
            large, small = torch.ones(1 << 20), torch.ones(16)
        other, few = torch.zeros(1 << 20), torch.zeros(16)
        host, little = t.pinned((1 << 20,), torch.float32), t.pinned((16,), torch.float32)
        host.zero_(), little.zero_()
        array = numpy.zeros(1 << 20, dtype=numpy.float32)
        pool = t.Offloader("64MiB")
        path = os.path.join(tempfile.mkdtemp(), "file")
        raw = t.Raw(large.data_ptr(), large.nbytes, 0)
        within = large[1 << 19:]
        rows = numpy.array([[host.data_ptr(), large.data_ptr(), 64]], dtype=numpy.uint64)
        used = {
            "to pinned": lambda: t.copy(host, large),
            "from pinned": lambda: t.copy(large, host),
            "plain": lambda: t.copy(large, host, direct=True),
            "to the GPU itself": lambda: t.copy(other, large),
            "to pageable": lambda: t.copy(array[1 << 19 :], within),
            "small": lambda: t.copy(little, small),
            "into small": lambda: t.copy(small, little),
            "unordered": lambda: t.copy(few, small, t.UNORDERED),
            "a batch": lambda: t.copy_batch([(host, other), (small, little)]),
            "rows": lambda: t.default_engine().copy_rows(rows),
            "gathered": lambda: t.gather(host, large.view(64, -1)),
            "scattered": lambda: t.scatter(large.view(64, -1), host),
            "raw": lambda: t.copy(host, raw),
            "unknown raw": lambda: t.copy(host, t.Raw(raw.address, raw.bytes)),
            "written": lambda: t.write_file(path, large),
            "read": lambda: t.read_file("/dev/zero", within),
            "offloaded": lambda: pool.offload([other, large]),
            "fetched": lambda: pool.prefetch([large]),
            "alternated": lambda: pool.alternate([layer]).__enter__(),
            "registered": lambda: t.register_host(large),
        }
        with glake.region("weights"):
            layer = torch.nn.Linear(8, 8)
        t.copy(host, other).wait()  # which opens the engine
        for to in ("host", "discard"):
            glake.pause("weights", to=to)
            for name, call in used.items():
                try:
                    call()
                except glake.RegionPaused as error:
                    for part in ('lies in region "weights" on cuda:0', 'glake.resume("weights")'):
                        assert part in str(error), (name, error)
                else:
                    raise AssertionError(name)
            assert pool.used == 0 and not os.path.exists(path)
            t.copy(few, little).wait()  # others go on
            glake.resume("weights")
            if to == "host":
                assert bool((large == 1).all()) and bool((small == 1).all())
        assert not other.any() and not host.any() and not array.any() and not little.any()
        large.fill_(2)
        t.copy(host, large).wait()
        pool.offload([large]).wait()
        assert bool((host == 2).all()) and pool.used == large.nbytes
        """
    )


def test_each_thread_has_its_own(passes):
    passes(
        """
        import threading, torch, glake

        made, both = {}, threading.Barrier(2)

        def work(name):
            with glake.region(name):
                both.wait()
                made[name] = [torch.ones(1 << 16) for _ in range(8)]
                both.wait()

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert {r.name: r.blocks for r in glake.regions()} == {"a": 8, "b": 8}
        glake.pause("a")
        assert all(bool((t == 1).all()) for t in made["b"])
        glake.resume("a")
        assert all(bool((t == 1).all()) for t in made["a"])
        """
    )


def test_regions_end_in_the_order_they_began_or_say_so(passes):
    passes(
        """
        import asyncio, threading, torch, glake

        def where(tensor):
            (name,) = [r.name for r in glake.regions() if r.live == tensor.nbytes] or ["none"]
            return name

        async def task(name, size, begun, go_on, told):
            try:
                with glake.region(name):
                    begun.set()
                    await go_on.wait()
                    made = torch.ones(size)
                    told[name] = where(made)
            except glake.RegionRefused as error:
                told[name] += f": {error}"

        async def both():
            begun, over, told = asyncio.Event(), asyncio.Event(), {}
            first = asyncio.create_task(task("a", 1 << 16, asyncio.Event(), begun, told))
            await asyncio.sleep(0)
            second = asyncio.create_task(task("b", 1 << 17, begun, over, told))
            await first
            between = torch.ones(1 << 18)
            assert where(between) == "b"
            del between
            over.set()
            await second
            return told

        told = asyncio.run(both())
        assert told["b"] == "b", told
        assert told["a"].startswith("b: region 'a' ends while 'b'") and "await" in told["a"], told
        after = torch.ones(1 << 19)
        assert where(after) == "none"  # all have ended

        opened = glake.region("c")
        opened.__enter__()
        raised = []

        def leave():
            try:
                opened.__exit__(None, None, None)
            except glake.RegionRefused as error:
                raised.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start(); thread.join()
        assert raised and "another thread" in raised[0], raised
        assert where(torch.ones(1 << 20)) == "c"
        """
    )


def test_resumed_without_memory_it_stays_paused_and_whole(passes):
    passes(
        """
        import torch, glake

        with glake.region("weights"):
            kept = torch.arange(12 << 20, dtype=torch.int32)
        glake.pause("weights")
        others = torch.ones(24 << 20)
        for _ in range(2):
            try:
                glake.resume("weights")
            except glake.OutOfMemory as error:
                for part in ('region "weights"', "needs 48.00 MiB", "Free about", "GLAKE_LIMIT"):
                    assert part in str(error), error
            else:
                raise AssertionError("48 MiB beside 96 MiB in 128 MiB")
            (region,) = glake.regions()
            assert region.state == "paused" and region.paused == 48 << 20
        assert bool((others == 1).all())
        del others
        glake.resume("weights", verify=True)
        assert torch.equal(kept, torch.arange(12 << 20, dtype=torch.int32))
        """,
        SIM_MEMORY="192MiB",
        LIMIT="128MiB",
    )


def test_a_full_disk_leaves_the_region_in_use_and_whole(passes):
    """A file-size limit refuses room for the file, as a full disk does."""
    passes(
        """
        import os, resource, tempfile, torch, glake

        with glake.region("weights"):
            kept = torch.arange(1 << 20)
        address, before = kept.data_ptr(), glake.regions()
        with tempfile.TemporaryDirectory() as folder:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            for _ in range(2):
                try:
                    glake.pause("weights", to="disk", folder=folder)
                except glake.RegionRefused as error:
                    for part in (
                        'region "weights"',
                        "8.00 MiB cannot be kept in " + folder,
                        "pause to host memory",
                    ):
                        assert part in str(error), error
                else:
                    raise AssertionError("8 MiB in a file of 1 MiB")
                assert glake.regions() == before and before[0].state == "in use"
                assert kept.data_ptr() == address and torch.equal(kept, torch.arange(1 << 20))
            kept += 1  # and it goes on
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            glake.pause("weights", to="disk", folder=folder)
            assert os.listdir(folder) == []
            glake.resume("weights", verify=True)
        assert torch.equal(kept, torch.arange(1 << 20) + 1)
        glake.check()
        """
    )


def test_a_file_cut_short_or_changed_leaves_the_region_paused(passes):
    """Only this process can reach the file, which has no name: through its open files."""
    passes(
        """
        import glob, os, tempfile, torch, glake

        def kept_in(folder):
            for link in glob.glob("/proc/self/fd/*"):
                try:
                    if os.readlink(link).startswith(folder): return link
                except FileNotFoundError: pass

        def fails(kind, text):
            try:
                glake.resume("weights")
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"no {kind.__name__}")
            (region,) = glake.regions()
            assert region.state == "paused" and region.saved == 8 << 20

        with glake.region("weights"):
            kept = torch.arange(1 << 20)
        with tempfile.TemporaryDirectory() as folder:
            glake.pause("weights", to="disk", folder=folder)
            with open(kept_in(folder), "r+b") as file:
                content = file.read()
                file.truncate(1 << 20)
                fails(glake.Corrupted, f"a file in {folder} are not all there: something has cut")
                file.seek(0)
                file.write(content[:-1] + b"x")
                file.flush()
                fails(glake.Corrupted, "something has written there")
                file.seek(0)
                file.write(content)
            glake.resume("weights")
        assert torch.equal(kept, torch.arange(1 << 20))
        """
    )
