"""The functions of the `basic` mode, on the simulator. torch's side cannot run without a GPU."""

import ctypes

import torch

from glake.allocator import basic


def test_the_functions_torch_calls(run, tmp_path):
    done = run("plugin.py", str(tmp_path), ALLOCATOR=None, SIM_MEMORY="128MiB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plugin ok on")


def test_install_connects_and_switches_in_that_order(monkeypatch):
    steps = []
    names = [f.removeprefix("glake_plugin_") for f in basic.SETTERS.values()]
    functions = {f"glake_plugin_{name}": ctypes.CFUNCTYPE(None)(lambda: None) for name in names}
    adapter = type("Adapter", (), {"_name": "/plugin.so", **functions})

    class Inner:
        def __getattr__(self, name):
            return lambda address: steps.append(name)

    class Pluggable:
        def __init__(self, *names):
            steps.append(names)

        def allocator(self):
            return Inner()

    monkeypatch.setattr(basic, "plugin", lambda: adapter)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Pluggable)
    monkeypatch.setattr(
        torch.cuda.memory, "change_current_allocator", lambda allocator: steps.append("changed")
    )
    basic.install()
    assert steps[0] == ("/plugin.so", "glake_plugin_alloc", "glake_plugin_free")
    assert steps[1:-1] == list(basic.SETTERS)
    assert steps[-1] == "changed"


def test_torchs_allocator_object_has_the_setters_we_call():
    import re
    from pathlib import Path

    header = Path(torch.__file__).parent / "include/torch/csrc/cuda/CUDAPluggableAllocator.h"
    declared = set(re.findall(r"\bvoid (set_\w+)\(", header.read_text()))
    assert set(basic.SETTERS) <= declared
