"""The basic mode's functions on the simulated GPU, as torch calls them (argument: a folder)."""

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import glake
from glake.allocator import adapter_build, basic

MiB = 1 << 20
pointer, size = ctypes.c_void_p, ctypes.c_ssize_t


def compile_probe(folder: Path) -> ctypes.CDLL:
    command = adapter_build._command("plugin")
    source = next(word for word in command if word.endswith("plugin.cpp"))
    command[command.index(source)] = str(Path(__file__).with_name("plugin_probe.cpp"))
    command.remove("-fvisibility=hidden")
    subprocess.run([*command, "-o", str(folder / "probe.so")], check=True)
    return ctypes.CDLL(str(folder / "probe.so"))


def thrown(probe: ctypes.CDLL, name: str, *arguments: object) -> tuple[str, str]:
    text = ctypes.create_string_buffer(4096)
    call = getattr(probe, name)
    call.restype = ctypes.c_char_p
    kind = call(*arguments, text, size(len(text)))
    return kind.decode(), text.value.decode()


def second_stream() -> int:
    driver = ctypes.CDLL(str(glake.library_path().with_name("libsimcuda.so")))
    context, stream = pointer(), pointer()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert stream.value
    return stream.value


def main() -> None:
    plugin = basic.plugin()
    plugin.glake_plugin_alloc.restype = pointer
    plugin.glake_plugin_alloc.argtypes = [size, ctypes.c_int, pointer]
    plugin.glake_plugin_free.argtypes = [pointer, size, ctypes.c_int, pointer]
    plugin.glake_plugin_record_stream.argtypes = [pointer, pointer]
    plugin.glake_plugin_base_alloc.restype = pointer
    plugin.glake_plugin_base_alloc.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t)]
    plugin.glake_plugin_memory_fraction.argtypes = [ctypes.c_double, ctypes.c_int]
    plugin.glake_plugin_failed_frees.restype = ctypes.c_uint64

    plugin.glake_plugin_memory_fraction(0.5, 0)  # of 128 MiB
    assert plugin.glake_plugin_alloc(0, 0, None) is None
    block = plugin.glake_plugin_alloc(10 * MiB, 0, None)
    assert block % 512 == 0
    ctypes.memset(block, 0x5A, 10 * MiB)
    extent = ctypes.c_size_t()
    assert plugin.glake_plugin_base_alloc(block, ctypes.byref(extent)) == block
    assert extent.value == 10 * MiB
    plugin.glake_plugin_record_stream(block, second_stream())
    assert ctypes.string_at(block, 10 * MiB) == b"\x5a" * (10 * MiB)

    probe = compile_probe(Path(sys.argv[1]))
    alloc = ctypes.cast(plugin.glake_plugin_alloc, pointer)
    kind, text = thrown(probe, "probe_alloc", alloc, size(60 * MiB), 0)
    assert kind == "OutOfMemoryError" and text, (kind, text)
    kind, text = thrown(probe, "probe_alloc", alloc, size(-1), 0)
    assert kind == "Error" and "-1" in text, (kind, text)
    kind, text = thrown(probe, "probe_alloc", alloc, size(512), 99)
    assert kind == "Error" and "99" in text, (kind, text)
    begin = ctypes.cast(plugin.glake_plugin_begin_pool, pointer)
    kind, text = thrown(probe, "probe_begin_pool", begin)
    assert kind == "NotImplementedError" and "CUDA graphs" in text, (kind, text)

    plugin.glake_plugin_free(block, 10 * MiB, 0, None)
    plugin.glake_plugin_free(None, 0, 0, None)
    assert plugin.glake_plugin_failed_frees() == 0
    plugin.glake_plugin_reset()
    stats = glake.stats()
    assert stats["requested_bytes.all.current"] == 0
    plugin.glake_plugin_free(block, 10 * MiB, 0, None)
    assert plugin.glake_plugin_failed_frees() == 1

    given: dict[str, int] = {}
    setters = {name: lambda address, name=name: given.update({name: address})
               for name in basic.SETTERS}  # fmt: skip
    basic.connect(SimpleNamespace(**setters), plugin)
    assert sorted(given) == sorted(basic.SETTERS) and len(set(given.values())) == len(given)
    ctypes.CFUNCTYPE(None)(given["set_reset_fn"])()
    print("plugin ok on", torch.__version__.split("+")[0])


main()
