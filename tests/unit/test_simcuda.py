"""glake.simcuda: links, faults of copies, landings, places of host memory."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_python import output, run

import glake
from glake import config, simcuda
from glake.errors import InvalidOption

MIB = 1 << 20
UPLINK = 12.3  # GB/s, dgx1v


class Machine:
    """Device 0 of a phantom DGX-1, through the driver's own calls."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL(str(glake.library_path().with_name("libsimcuda.so")))
        context, self.device, self.stream = (ctypes.c_void_p() for _ in range(3))
        host = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(64 * MIB))
        self.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(64 * MIB), 0)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        assert host.value is not None and self.device.value is not None
        self.host, self.to = host.value, self.device.value

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        assert code == 0, (name, code)

    def copy(self, size: int, at: int = 0) -> int:
        """Copies from the host at offset `at`; returns the CUresult of waiting for the stream."""
        to, source = ctypes.c_uint64(self.to + at), ctypes.c_void_p(self.host + at)
        self.call("cuMemcpyHtoDAsync_v2", to, source, ctypes.c_size_t(size), self.stream)
        return int(self.cuda.cuStreamSynchronize(self.stream))


@pytest.fixture
def machine() -> Iterator[Machine]:
    simcuda.reset()
    simcuda.configure("preset", "dgx1v")
    simcuda.configure("phantom", 1)
    yield Machine()
    simcuda.reset()


def test_some_options_change_at_any_time(machine: Machine) -> None:
    """The option table says which. Each is set to its default, or to an example of a value."""
    examples = {"SIM_CALL_US": "cuMemMap=1", "SIM_CALL_DELAY_US": "cuMemMap=0"}
    options = [each for each in config.OPTIONS.values() if each.reader == "simulator"]
    for option in options:
        name, text = option.name[4:].lower(), examples.get(option.name, option.default)
        if option.any_time:
            simcuda.configure(name, text)
            continue
        with pytest.raises(InvalidOption, match=f"option {name} must be set before the first"):
            simcuda.configure(name, text)
    assert sum(option.any_time for option in options) == 5


def test_every_option_of_the_simulator_is_a_variable() -> None:
    """Even options that only its tests use. Python, the core and the simulator take defaults."""
    variables = {
        config.PREFIX + option.name: option.default
        for option in config.OPTIONS.values()
        if option.reader == "simulator"
    }
    assert config.read(variables) == config.Config()
    variables |= {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MAX_MAPS": "60000"}
    output(PROGRAMS / "one_block.py", **variables)
    done = run(PROGRAMS / "one_block.py", **(variables | {"GLAKE_SIM_DEAD_LINK": "dead"}))
    assert 'dead_link takes a CUresult, or 0, not "dead"' in done.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [("devices", "0"), ("seed", "x"), ("schedule", "eager"), ("machine", "a/b"), ("phantom", "2"),
     ("host_node", "64"), ("call_us", "cuNoSuchCall=1"), ("call_us", "cuMemMap"), ("memory", "1"),
     ("dead_link", "dead"), ("max_maps", "63"), ("batch_small_ns", "-1"), ("reuse_handles", "2")],
)  # fmt: skip
def test_a_value_that_is_not_taken_is_named_with_what_is(name: str, text: str) -> None:
    simcuda.reset()
    with pytest.raises(InvalidOption) as caught:
        simcuda.configure(name, text)
    takes = config.lookup(f"sim_{name}").takes
    assert f'simcuda option {name} takes {takes}, not "{text}"' in str(caught.value)


def test_a_platform_is_simulated_without_one_named(machine: Machine) -> None:
    name = ctypes.create_string_buffer(64)
    for preset, shown in (("dgx1v", "dgx1v"), (None, config.DEFAULT_PRESET)):
        simcuda.reset()
        if preset is not None:
            simcuda.configure("preset", preset)
        simcuda.configure("phantom", 1)
        machine.call("cuInit", 0)
        machine.call("cuDeviceGetName", name, 64, 0)
        assert name.value.decode() == f"simcuda ({shown})"


def test_links_change_speed(machine: Machine) -> None:
    simcuda.set_link("s0", "u0", UPLINK / 2)
    assert machine.copy(32 * MIB) == 0
    assert simcuda.now_ns() == pytest.approx(8000 + 32 * MIB / (UPLINK / 2), abs=2)
    start = simcuda.now_ns()
    simcuda.set_link("s0", "u0", UPLINK, at_ns=start + 1_008_000)
    assert machine.copy(32 * MIB) == 0
    slow = 1e6 * UPLINK / 2
    wanted = 1_008_000 + (32 * MIB - slow) / UPLINK
    assert simcuda.now_ns() - start == pytest.approx(wanted, abs=2)
    uplink = simcuda.edges(clear=True)["edges"]["s0>u0"]
    assert (uplink["bytes"], uplink["rate"]) == (64 * MIB, UPLINK)
    assert uplink["peak"] == pytest.approx(UPLINK) and uplink["load"] <= 1
    assert simcuda.edges()["edges"]["s0>u0"]["bytes"] == 0


def test_copies_fail_and_land_nothing(machine: Machine) -> None:
    simcuda.watch_landings(machine.to, 2 * MIB)
    simcuda.fail_copy("cpu", "cuda:0", k=2, code=999)
    simcuda.stall_copy("m0", "g0", 3, 5_000_000)
    assert [machine.copy(MIB), machine.copy(MIB, MIB)] == [0, 999]
    before = simcuda.now_ns()
    assert machine.copy(MIB // 2) == 0
    assert simcuda.now_ns() - before > 5_000_000
    assert simcuda.landed(machine.to, 2 * MIB) == MIB // 2
    assert simcuda.landed(machine.to, 2 * MIB, -1) == MIB // 2
    assert simcuda.landings(machine.to + MIB // 2 - 1, 2) == b"\2\1"
    assert simcuda.landings(machine.to + MIB, MIB) == bytes(MIB)
    simcuda.fail_copy("*", "*", times=-1)
    simcuda.fail_copy(None)
    assert machine.copy(MIB) == 0


def test_host_memory_has_a_place(machine: Machine) -> None:
    simcuda.place_host(machine.host + MIB, MIB, 1)
    simcuda.place_host(machine.host + 2 * MIB, MIB, -1)
    nodes = [simcuda.host_node(machine.host + i * MIB, MIB) for i in range(4)]
    assert nodes == [0, 1, -1, 0]
    assert machine.copy(MIB, MIB) == machine.copy(MIB, 2 * MIB) == 0
    assert simcuda.edges()["edges"]["s1>s0"]["bytes"] == MIB + MIB // 2


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m: simcuda.set_link("s0", "u9", 1), "s0>u9"),
        (lambda m: simcuda.fail_copy("gpu0"), "g3"),
        (lambda m: simcuda.stall_copy("g0", "g1", 0, 5), "k counts from 1"),
        (lambda m: simcuda.landings(m.to, 1), "watched"),
        (lambda m: simcuda.landed(m.to, 1), "watched"),
        (lambda m: simcuda.place_host(m.host, 1, 7), "socket"),
    ],
)
def test_what_is_refused_says_why(
    machine: Machine, call: Callable[[Machine], object], named: str
) -> None:
    with pytest.raises(InvalidOption, match=named):
        call(machine)


PROGRAMS = Path(__file__).parent / "programs"


_MOUNTS = ["unshare", "--map-root-user", "--mount", "sh", "-c"]


def _run_full(where: str, kind: int, **variables: str) -> str:
    """What full.py prints with 64 MiB at `where`."""
    small = f"mount -t tmpfs -o size=64m none {where}"
    if subprocess.run([*_MOUNTS, small], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces to mount a small file system in")
    shell = [*_MOUNTS, f'{small} && exec "$0" "$1" {kind}', sys.executable, PROGRAMS / "full.py"]
    environment = {**os.environ, "GLAKE_DRIVER": "sim", **variables}
    ran = subprocess.run(shell, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["granules", "vmm", "legacy"])
def test_a_full_dev_shm_is_named(kind: int) -> None:
    """Docker's default is 64 MiB. The error says so, says what fits, and does not blame other
    processes."""
    said = _run_full("/dev/shm", kind)
    for words in ("/dev/shm", "has 64 MiB", "--shm-size", f"fits {62 << 20} {62 << 20}"):
        assert words in said
    assert "other processes" not in said


def test_a_full_machine_dir_is_named(tmp_path: Path) -> None:
    """Its advice is about the folder that is full."""
    said = _run_full(str(tmp_path), 0, GLAKE_SIM_MACHINE_DIR=str(tmp_path))
    for words in (
        f"file system of {tmp_path}/", "has 64 MiB", f"remount,size=8G {tmp_path})",
        "GLAKE_SIM_MACHINE_DIR", f"fits {62 << 20}",
    ):  # fmt: skip
        assert words in said
    assert "/dev/shm" not in said and "--shm-size" not in said


def test_a_machine_dir_that_holds_no_such_file_is_named(tmp_path: Path) -> None:
    """ext4 holds files to 16 TiB. A limit of the process stands for it here."""
    environment = {**os.environ, "GLAKE_DRIVER": "sim", "GLAKE_SIM_MACHINE": "small-files"}
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "small_files.py"],
        env={**environment, "GLAKE_SIM_MACHINE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1
    for words in ("DriverError", "File too large", "64 TiB", "tmpfs", "GLAKE_SIM_MACHINE_DIR"):
        assert words in ran.stderr


def test_a_tables_prices_of_calls_made(machine: Machine) -> None:
    """One call over four mappings of one page each, and one over one mapping of four pages."""
    prop = (ctypes.c_int * 8)(1, 0, 1, 0)  # pinned, of device 0; the rest is 0
    access = (ctypes.c_int * 3)(1, 0, 3)
    simcuda.reset_calls()
    for pages, handles in ((1, 4), (4, 1)):
        at = ctypes.c_uint64()
        size, whole = ctypes.c_size_t(pages * 2 * MIB), ctypes.c_size_t(8 * MIB)
        machine.call("cuMemAddressReserve", ctypes.byref(at), whole, ctypes.c_size_t(0),
                     ctypes.c_uint64(0), ctypes.c_uint64(0))  # fmt: skip
        for place in range(handles):
            handle, to = ctypes.c_uint64(), ctypes.c_uint64(at.value + place * pages * 2 * MIB)
            machine.call("cuMemCreate", ctypes.byref(handle), size, prop, ctypes.c_uint64(0))
            machine.call("cuMemMap", to, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        machine.call("cuMemSetAccess", at, whole, access, ctypes.c_size_t(1))
    call = "cuMemSetAccess"
    assert simcuda.cost_by_us("published", call) == simcuda.cost_us(call) == 2 * (38 + 3 * 2)
    first, further, mapping = 26.892, 0.0893, 29.00775  # costs.json
    wanted = 2 * first + 3 * further + 3 * mapping
    assert simcuda.cost_by_us("NVIDIA H200", call) == pytest.approx(wanted)
