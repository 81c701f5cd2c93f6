"""glake.transfer as a user meets it: the driver in force, typed errors, plans that are cheap."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from glake import errors
from glake.platforms import file_text
from glake.transfer import bounds, planning, topology
from glake.transfer.topology import picture

ROOT = Path(__file__).resolve().parents[2]


def lines(program: str, **options: str) -> list[str]:
    """What a Python of its own prints; GLAKE_* options without their prefix."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    given = {f"GLAKE_{name}": value for name, value in options.items()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**clean, "PYTHONPATH": str(ROOT), **given},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("opened", ["_C.device_count()", "t.default_engine()"])
def test_the_topology_is_that_of_the_driver_in_force(opened: str) -> None:
    program = f"""
        import numpy as np
        from glake import _C, transfer as t
        from glake.transfer import topology
        _C.configure("DRIVER", "sim:dgx1v")
        {opened}
        print(topology.current().name, t.explain(src="cpu", dst="cuda:0", nbytes=1 << 30).platform)
        block = _C.malloc(64, 0, 0)
        t.copy(t.Raw(block, 64, 0), np.ones(64, np.uint8)).wait()
        print(t.default_engine().topology.name)
    """
    assert lines(program) == ["dgx1v dgx1v", "dgx1v"]
    assert lines(program, DRIVER="sim:dgx_a100") == ["dgx1v dgx1v", "dgx1v"]


def test_a_file_as_a_preset_is_told_the_way() -> None:
    with pytest.raises(errors.InvalidOption, match="GLAKE_SIM_PLATFORMS=FILE"):
        topology.current({"GLAKE_DRIVER": "sim:/box/odd.json"})
    with pytest.raises(errors.InvalidOption) as refused:
        topology.current({"GLAKE_DRIVER": "sim:odd"})
    assert "GLAKE_SIM_PLATFORMS" not in str(refused.value)


def test_errors_are_typed() -> None:
    program = """
        import numpy as np, pytest, torch
        from glake import _C, errors, transfer as t
        size = 1 << 20
        gpu, data = t.Raw(_C.malloc(size, 0, 0), size, 0), np.zeros(size, np.uint8)
        handle = t.copy(gpu, data)
        assert handle.wait(float("inf")) is handle and handle.wait(1e308) is handle
        assert t.copy(gpu, data).wait(np.float32(60)).done()
        dead = {name: 0.0 for name in ("s0>u0", "s0>u1", "s1>u2", "s1>u3")}
        plan = t.explain(src="cpu", dst="cuda:0", nbytes=size, scales=dead)
        assert not plan.paths and plan.rate == plan.bound == 0 and plan.expected_us is None
        assert "every way is dead" in str(plan) and "cpu:0/pcie>u0 is dead" in str(plan)
        registered = np.zeros(size, np.uint8)
        pinned = t.register_host(registered)
        weight = torch.nn.Linear(512, 512).weight
        if torch.version.cuda is None:
            t.register_host(weight).unregister()
        offloader = t.Offloader("8MiB")
        way = {"src": "cpu", "dst": "cuda:0", "nbytes": 1}
        offloader.offload([]), offloader.prefetch([]), offloader.offload([5, None])
        refused = {
            "seconds": [lambda: handle.wait("x"), lambda: pinned.wait("x"), lambda: handle.wait(-1),
                        lambda: offloader.offload([]).wait("x")],
            "pair": [lambda: t.copy_batch(None), lambda: t.copy_batch([(gpu, data, 3)]),
                     lambda: t.copy_batch([gpu])],
            "exclude": [lambda: t.explain(**way, exclude=[99]),
                        lambda: t.explain(**way, exclude=["g1"]),
                        lambda: t.explain(**way, exclude=5.5),
                        lambda: t.bound("dgx1v", dst="cuda:0", src="cpu", exclude=[-1])],
            "scales|edge": [lambda: t.explain(**way, scales=5),
                            lambda: t.explain(**way, scales={"s0>u0": "x"})],
            "take a preset": [lambda: t.explain(**way, platform=5), lambda: t.Engine(5)],
            "dtype": [lambda: t.pinned(4, "nope")],
            "shape": [lambda: t.pinned(2.5), lambda: t.pinned(None)],
            "torch tensors": [lambda: t.to(data, "cpu")],
            "device": [lambda: t.to(weight, "nonsense"), lambda: t.to(weight, "meta"),
                       lambda: t.to(weight, None)],
            "no tensors": [lambda: offloader.offload(5), lambda: offloader.offload(None),
                           lambda: offloader.prefetch(None)],
            "none is on a GPU": [lambda: offloader.prefetch(torch.zeros(9))],
            "read-only": [lambda: t.register_host(bytes(100)),
                          lambda: t.register_host(np.broadcast_to(registered, (1, size)))],
        }
        for match, calls in refused.items():
            for call in calls:
                with pytest.raises(errors.InvalidArgument, match=match):
                    call()
        if not torch.cuda.is_available():
            for device in ("cuda", "cuda:0", "cuda:55", 0):
                with pytest.raises(errors.InvalidDevice, match="copy"):
                    t.to(weight, device)
    """
    assert lines(program, DRIVER="sim:dgx_a100", SIM_MEMORY="128MiB") == []


def test_an_engine_without_links_plans_for_the_gpus_there_are() -> None:
    program = """
        from glake import _C, errors
        _C.transfer_open("", "")
        print(len(_C.transfer_plan(1, 0, -1, 1 << 20)["paths"]))
        for ends in ((99, 0), (0, 99), (2, -1)):
            try:
                _C.transfer_plan(*ends, -1, 1 << 20)
            except errors.InvalidDevice as error:
                print(f"cuda:{max(ends)}" in str(error))
    """
    assert lines(program, DRIVER="sim", SIM_DEVICES="2") == ["1", "True", "True", "True"]


def test_every_method_of_a_parents_handle_is_forked() -> None:
    program = """
        import asyncio, os, numpy as np
        from functools import partial
        from glake import _C, errors, transfer as t
        from glake.transfer.offload import Move
        size = 1 << 20
        gpu, data = t.Raw(_C.malloc(size, 0, 0), size, 0), np.zeros(size, np.uint8)
        done, running = t.copy(gpu, data).wait(), t.copy(gpu, np.ones(size, np.uint8))
        moved, pinned = Move([]), t.register_host(data)
        async def awaited(handle):
            await handle
        child = os.fork()
        if child == 0:
            calls = [call for handle in (done, running) for call in (
                handle.done, handle.wait, handle.result, handle.cancel, handle.progress,
                partial(handle.stream_wait, (0, 0)), lambda at=handle: asyncio.run(awaited(at)),
            )]
            for one in (moved, pinned):
                calls += one.done, one.wait, one.progress
            for number, call in enumerate([*calls, pinned.unregister]):
                try:
                    call()
                except errors.Forked:
                    continue
                os._exit(number + 1)
            repr(done)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), running.wait().done())
    """
    assert lines(program, DRIVER="sim:dgx_a100", SIM_MEMORY="128MiB") == ["0 True"]


def test_what_plans_share_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("_relays_from", "planner_of", "graph_of"):
        real = getattr(planning, name)
        monkeypatch.setattr(
            planning,
            name,
            lambda *given, n=name, f=real, **more: asked.append(n) or f(*given, **more),
        )
    solve = bounds._maximum
    monkeypatch.setattr(bounds, "_maximum", lambda *given: asked.append("bound") or solve(*given))
    box = replace(topology.from_preset("dgx_a100"), name="plans_share")
    first = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    text = str(first)
    assert sorted(asked) == ["_relays_from", "bound", "graph_of", "planner_of"]
    again = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    other = planning.explain(src="cpu", dst="cuda:0", nbytes=64 << 20, platform=box)
    assert again == first and str(again) == text and other.bound == first.bound
    assert len(asked) == 4 and "64 MiB" in str(other)
    slow = planning.explain(
        src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box, scales={"s0>u0": 0.5}
    )
    assert slow.bound < first.bound and slow.rate < first.rate


def test_links_measured_anew_are_planned_anew() -> None:
    box = replace(topology.from_preset("dgx_a100"), name="measured_anew")
    before = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    edges = tuple(
        replace(edge, gb_per_s=edge.gb_per_s / 2) if edge.name == "s0>u0" else edge
        for edge in box.platform.edges
    )
    measured = replace(box, platform=replace(box.platform, edges=edges))
    after = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=measured)
    assert after.bound < before.bound and after.rate < before.rate
    assert f"{after.bound:.1f} GB/s" in str(after)


def test_a_platforms_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "box.json"
    for count in (2, 4):
        box = topology.first_gpus(topology.from_preset("dgx_a100").platform, count)
        made = tmp_path / "made"
        made.write_text(file_text({"box": box}))
        made.replace(file)
        found = topology.current({"GLAKE_DRIVER": "sim:box", "GLAKE_SIM_PLATFORMS": str(file)})
        assert found.platform.gpus == count


def test_a_picture_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"^/nowhere/odd\.png cannot be written: give"):
        picture.draw(topology.from_preset("dgx1v"), Path("/nowhere/odd.png"))
