"""glake.enable(), the memory it serves, and what stays outside."""


def test_enable_after_tensors_exist(passes):
    program = """
        import torch, glake
        old = torch.arange(1000.0)
        glake.enable(driver="sim", policy="compact", limit="256MiB")
        glake.enable(policy="compact", limit=256 << 20)
        new = torch.arange(1000.0)
        assert torch.equal(old, new)
        old.resize_(5000)
        assert torch.equal(old[:1000], new)
        assert glake.stats()["requested_bytes.all.current"] == 4000  # the old one keeps its own
        del old, new
        assert glake.stats()["requested_bytes.all.current"] == 0
        from glake.allocator import emulation
        assert emulation.counters().failed_frees == 0
    """
    assert passes(program, on=False) == []


def test_bad_options_are_typed_and_change_nothing(passes):
    program = """
        import torch, glake
        from glake.allocator.torch import AlreadyEnabled, mode

        def refused(kind, words, **options):
            try:
                glake.enable(**options)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{options} was accepted")

        refused(glake.UnknownOption, "GLAKE_POLICY", driver="sim", polcy="compact")
        refused(glake.InvalidOption, "balanced or compact", driver="sim", policy="smart")
        refused(glake.InvalidOption, "fraction", driver="sim", limit=1.5)
        refused(glake.GlakeError, "GLAKE_DRIVER=sim", driver="cuda")
        assert mode() is None
        glake.enable(driver="sim")
        glake.enable()
        refused(AlreadyEnabled, "policy=balanced", policy="compact")
        refused(AlreadyEnabled, "driver=sim", driver="cuda")
        print(mode())
    """
    assert passes(program, on=False) == ["emulation"]


def test_enable_with_an_absent_driver_raises(passes):
    program = """
        import torch, glake
        try:
            glake.enable(driver="/absent/libsimcuda.so")
        except glake.DriverAbsent as error:
            print("/absent/libsimcuda.so" in str(error))
    """
    assert passes(program, on=False) == ["True"]


def test_out_of_memory_is_torchs_and_training_goes_on(passes):
    program = """
        import torch, glake
        kept = torch.full((1 << 20,), 7.0)
        for size in (1 << 30, 1 << 50):
            try:
                torch.empty(size, dtype=torch.uint8)
            except torch.OutOfMemoryError as error:
                print(str(error).startswith("glake: "), glake.stats()["num_ooms"] > 0)
        layer = torch.nn.Linear(2048, 2048)
        optimizer = torch.optim.AdamW(layer.parameters())
        failures = 0
        for step in range(8):
            rows = 20000 if step % 2 else 64  # 20000 rows: 156 MiB each way
            try:
                layer(torch.ones(rows, 2048)).square().mean().backward()
                optimizer.step()
            except torch.OutOfMemoryError:
                failures += 1
            optimizer.zero_grad()
        print(failures, bool((kept == 7).all()))
        del kept, layer, optimizer
        print(glake.stats()["requested_bytes.all.current"])
    """
    assert passes(program, LIMIT="128MiB") == ["True True", "True True", "4 True", "0"]


def test_inside_and_outside(passes):
    program = """
        import io, numpy, torch, glake
        from glake.allocator import emulation

        def inside(tensor):
            return emulation._is_block(tensor.untyped_storage().data_ptr())

        inner = torch.ones(1 << 18)
        array = numpy.ones(1 << 18, dtype="float32")
        outer = torch.from_numpy(array)
        shared = torch.ones(10).share_memory_()
        assert inside(inner) and inside(inner.clone()) and inside(torch.tensor([1.0] * 64))
        assert not inside(outer) and not inside(shared)
        assert not inside(torch.tensor([], dtype=torch.float32))
        assert abs(glake.covered_share() - 0.5) < 0.01, glake.covered_share()
        again = outer[5:]
        assert abs(glake.covered_share() - 0.5) < 0.01  # a storage counts once
        file = io.BytesIO()
        torch.save({"inner": inner, "outer": outer}, file)
        loaded = torch.load(io.BytesIO(file.getvalue()))
        assert inside(loaded["inner"]) and inside(loaded["outer"])
        assert torch.equal(loaded["inner"], inner)
        sized = torch.ones(10)
        sized.untyped_storage().resize_(0)
        sized.untyped_storage().resize_(1 << 21)
        sized.untyped_storage().fill_(3)
        assert inside(sized) and glake.stats()["requested_bytes.all.current"] > 1 << 21
        lazy = torch._lazy_clone(inner)
        lazy[0] = 5
        assert inner[0] == 1 and lazy[0] == 5
        assert emulation.counters().failed_frees == 0
    """
    assert passes(program) == []


def test_eight_threads(passes):
    assert passes("threads.py") == ["0 wrong", "0 failed frees", "0 bytes live"]


def test_the_profiler_sees_the_memory(run):
    program = """
        import torch
        with torch.profiler.profile(profile_memory=True) as profile:
            kept = torch.ones(1 << 20)
        sizes = [event.self_cpu_memory_usage for event in profile.key_averages()]
        print(max(sizes))
    """
    done = run(program)  # kineto may log on stderr
    assert (done.returncode, done.stdout) == (0, f"{4 << 20}\n"), done.stderr


def test_trace_and_steps(passes, tmp_path):
    program = f"""
        import torch, glake
        recording = glake.record_trace({str(tmp_path / "job.trace")!r})
        for _ in range(3):
            torch.ones(1000).sum()
            glake.step()
        recording.stop()
        print(glake.stats()["glake.steps"])
        try:
            glake.record_trace({str(tmp_path / "absent" / "job.trace")!r})
        except glake.GlakeError as error:
            print("absent" in str(error))
        try:
            glake.stats(99)
        except glake.InvalidDevice:
            print("no such device")
    """
    lines = passes(program)
    assert lines[1:] == ["True", "no such device"]
    assert int(lines[0]) >= 3
    assert (tmp_path / "job.trace").stat().st_size > 0


def test_exit_with_live_tensors_everywhere_is_clean(passes):
    program = """
        import torch, glake
        glake.enable(driver="sim")
        kept = [torch.ones(1000) for _ in range(100)]
        cycle = [torch.ones(10)]
        cycle.append(cycle)
        torch.stash = torch.ones(1000)  # freed after most modules are gone, if at all
        loss = torch.nn.Linear(10, 10)(torch.ones(5, 10)).sum()
        loss.backward()  # leaves autograd's thread behind
        torch.randn(3, requires_grad=True).register_hook(lambda grad, kept=kept: None)
    """
    assert passes(program, on=False) == []


def test_enable_says_so_where_there_is_no_torch(passes):
    program = """
        import sys
        sys.modules["torch"] = None
        import glake
        try:
            glake.enable(driver="sim")
        except glake.GlakeError as error:
            print(error)
    """
    assert passes(program, on=False) == [
        "glake.enable() is for PyTorch, which is not installed here: with a GPU its CUDA build: "
        "pip install torch; without one the CPU build: pip install torch --index-url "
        "https://download.pytorch.org/whl/cpu"
    ]
