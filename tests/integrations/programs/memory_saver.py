"""torch_memory_saver's calls act on glake's regions. The package is hooked when it is imported."""

import sys
import tempfile

import torch

import glake

MIB = 1 << 20


def paused() -> int:
    """Bytes that regions have given back to the driver."""
    assert glake.stats()["glake.paused_bytes"] == sum(each.paused for each in glake.regions())
    return glake.stats()["glake.paused_bytes"]


def tensor(value: int) -> torch.Tensor:
    return torch.full((8 * MIB,), value, dtype=torch.uint8)


def raised(kind: type[Exception], call, *arguments, **named) -> str:
    try:
        result = call(*arguments, **named)
        if hasattr(result, "__enter__"):
            result.__enter__()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def as_the_regions_say() -> None:
    with saver.region("weights", enable_cpu_backup=True):
        weights = tensor(1)
        with saver.disable():
            outside = tensor(2)
    with saver.region("cache"):
        cache = tensor(3)
    with saver.region("cache", enable_disk_backup=True):
        kept = tensor(4)
    places = [each.data_ptr() for each in (weights, cache, kept)]
    saver.pause("cache")
    assert paused() == 16 * MIB and (weights == 1).all() and (outside == 2).all()
    saver.pause("cache")  # none of its memory is in use
    saver.pause()
    assert paused() == 24 * MIB and (outside == 2).all()
    saver.resume("weights")
    assert (weights == 1).all() and paused() == 16 * MIB
    saver.resume()
    saver.resume()
    assert paused() == 0 and (kept == 4).all() and (weights == 1).all()
    assert places == [each.data_ptr() for each in (weights, cache, kept)]
    saver.pause("no such tag")
    del weights, cache, kept, outside


def refused_as_a_whole() -> None:
    with saver.region("a", enable_cpu_backup=True):
        first = tensor(5)
    with saver.region("a"):
        pinned = tensor(6)
    with glake.pin(pinned.data_ptr()):
        assert "pinned" in raised(glake.RegionRefused, saver.pause, "a")
    assert paused() == 0 and (first == 5).all() and (pinned == 6).all()
    saver.pause("a")
    assert paused() == 16 * MIB
    saver.resume("a")
    assert (first == 5).all()
    del first, pinned
    with saver.region("b"):  # it is dropped, but not before all others can pause
        dropped = tensor(7)
    with saver.region("b", enable_cpu_backup=True):
        pinned = tensor(8)
    with glake.pin(pinned.data_ptr()):
        assert "pinned" in raised(glake.RegionRefused, saver.pause, "b")
    assert paused() == 0 and (dropped == 7).all() and (pinned == 8).all()


def the_rest() -> None:
    assert saver.enabled and saver.hook_mode == "glake" and not saver.retain_cpu_backup
    saver.hook_mode = "preload"
    saver.memory_margin_bytes = 64 * MIB
    assert saver.memory_margin_bytes == glake.stats()["glake.headroom_bytes"] == 64 * MIB
    saver.memory_margin_bytes = 0
    not_offered = glake.GlakeError
    raised(not_offered, setattr, saver, "retain_cpu_backup", True)
    raised(not_offered, saver.get_cpu_backup, tensor(1))
    raised(not_offered, saver.region, enable_cpu_backup=True, cpu_backup_backend="mmap")
    raised(glake.InvalidArgument, saver.region, cpu_backup_backend="pinned")
    raised(glake.InvalidArgument, saver.region, enable_cpu_backup=True, enable_disk_backup=True)
    with package.configure_subprocess():
        pass


def put_back() -> None:
    from glake import integrations

    assert glake.stats()["glake.integrations.memory_saver.paused_bytes"] == (8 + 16 + 8 + 16) * MIB
    integrations.install("memory_saver")  # a second time has no effect
    assert package.torch_memory_saver is saver
    with saver.region("late", enable_cpu_backup=True):
        late = tensor(9)
    saver.pause("late")
    said = raised(glake.RegionRefused, integrations.uninstall, "memory_saver")
    assert "'late' is paused" in said and package.torch_memory_saver is saver
    saver.resume("late")
    assert (late == 9).all()
    integrations.uninstall("memory_saver")
    integrations.uninstall("memory_saver")
    assert package.torch_memory_saver is not saver
    integrations.install("memory_saver")
    assert type(package.torch_memory_saver) is type(saver)


if sys.argv[1:] == ["imported first"]:
    import torch_memory_saver as package

    glake.enable(driver="sim")
else:
    glake.enable(driver="sim")
    import torch_memory_saver as package
saver = package.torch_memory_saver
raised(glake.InvalidArgument, saver.region, "x", enable_disk_backup=True)
with tempfile.TemporaryDirectory() as folder:
    saver.set_disk_backup_dir(folder)
    as_the_regions_say()
refused_as_a_whole()
the_rest()
put_back()
print("saved")
