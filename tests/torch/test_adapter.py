"""The CUDA adapter on a CPU build of torch, over a stub of libc10_cuda.

tests/torch/stub/*_test.cpp has a test for every function that torch calls. Each test runs in a
process of its own, in which the adapter is installed as Python installs it.
"""

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import glake
from glake.allocator import adapter_build

STUB = Path(__file__).parent / "stub"
TESTS = sorted(
    name
    for source in STUB.glob("*_test.cpp")
    for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), re.M)
    if not name.endswith("_receiver")  # another test runs it
)

MACHINES = itertools.count()
SINCE_2_14 = {"supportsUserMetadata", "annotateMemory"}  # older torch lacks them

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="a CUDA build of torch has its own libc10_cuda"
)


def _compiled(folder: Path) -> dict[str, Path]:
    """Compiles the adapter, the stub and the test program, two at a time."""
    include = Path(torch.__file__).parent / "include"
    libraries = Path(torch.__file__).parent / "lib"
    ours = glake.library_path().parent
    flags = adapter_build._flags(adapter_build.CUDA, include, torch.__version__)
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{STUB}"]

    def compile_one(source: Path) -> None:
        made = folder / f"{source.stem}.o"
        subprocess.run(["g++", "-O0", *flags, "-c", str(source), "-o", str(made)], check=True)

    def link(name: str, objects: list[str], *more: str) -> Path:
        made = folder / name
        found = [str(folder / f"{each}.o") for each in objects]
        where = f"-Wl,-rpath,{libraries}:{ours}:{folder},-z,defs"
        command = ["g++", "-o", str(made), *found, *more, f"-L{libraries}", f"-L{ours}"]
        subprocess.run(
            [*command, "-lc10", "-ltorch_cpu", "-ltorch", "-lsimcuda", "-lpthread", where],
            check=True,
        )
        return made

    with ThreadPoolExecutor(2) as pool:
        adapter = pool.submit(adapter_build.build, adapter_build.CUDA)
        list(pool.map(compile_one, STUB.glob("*.cpp")))
    stub = link("libc10_cuda_stub.so", ["runtime", "c10_cuda"], "-shared")
    hooks = link("libhooks.so", ["runtime", "c10_cuda", "hooks"], "-shared")
    programs = ["main", "emptied", *(source.stem for source in STUB.glob("*_test.cpp"))]
    program = link("adapter_test", programs, f"-L{folder}", "-lc10_cuda_stub", "-lglake")
    return {"adapter": adapter.result(), "stub": stub, "hooks": hooks, "program": program}


@pytest.fixture(scope="session")
def built(tmp_path_factory, jit_dir):
    before = os.environ.get("GLAKE_JIT_DIR")
    os.environ["GLAKE_JIT_DIR"] = str(jit_dir)
    try:
        return _compiled(tmp_path_factory.mktemp("stub"))
    finally:
        os.environ.pop("GLAKE_JIT_DIR")
        if before is not None:
            os.environ["GLAKE_JIT_DIR"] = before


def _run_test(name, built, **more):
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "256MiB", **more}
    if name.startswith("ipc"):
        settings["GLAKE_SIM_MACHINE"] = f"adapter-{os.getpid()}-{next(MACHINES)}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    return subprocess.run(
        [built["program"], built["adapter"], glake.library_path(), name],
        env=kept | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", TESTS)
def test_function(name, built):
    done = _run_test(name, built)
    assert done.returncode == 0, done.stderr


def test_every_function_is_needed(built):
    """If any one function does nothing, the test that is named for it fails."""
    listed = subprocess.run(
        [built["program"], "--functions"], capture_output=True, text=True, check=True
    )
    pairs = [line.split() for line in listed.stdout.splitlines()]

    def survives(pair):
        done = _run_test(pair[1], built, ADAPTER_TEST_EMPTY=pair[0])
        assert done.returncode != 2, done.stderr  # no such function or test
        return done.returncode == 0

    with ThreadPoolExecutor(2) as pool:
        kept = [pair for pair, lived in zip(pairs, pool.map(survives, pairs), strict=True) if lived]
    assert kept == []
    tried = {pair[0].split(".")[1] for pair in pairs if pair[0].startswith("device.")}
    assert _overridden() - tried == SINCE_2_14


def test_torch_accelerator(run, built):
    done = run("accelerator.py", str(built["hooks"]), ALLOCATOR=None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("adapter ok on")


def _overridden():
    ours = (adapter_build.SOURCES / "torch/cuda/allocator.h").read_text()
    return set(re.findall(r"\b(\w+)\([^;]*?(?:override|GLAKE_OVERRIDE_\w+);", ours))


def test_every_virtual_function_is_overridden():
    """A function that a new torch adds must be looked at, not left to the base class unseen."""
    include = Path(torch.__file__).parent / "include/c10"
    left_to_base = {"Allocator", "is_simple_data_ptr"}  # the base is right for these
    declared = set()
    for header, name in (
        ("cuda/CUDACachingAllocator.h", "class CUDAAllocator"),
        ("core/CachingDeviceAllocator.h", "struct C10_API DeviceAllocator"),
        ("core/Allocator.h", "struct C10_API Allocator"),
    ):
        text = (include / header).read_text()
        body = text[text.index(name) :]
        body = body[: body.index("\n};")]
        declared |= set(re.findall(r"virtual [^;{]*?\b(\w+)\(", body))
    assert declared - _overridden() - left_to_base == set()
    assert len(declared) > 40


def test_no_compiler_keeps_torchs_own(run):
    settings = {"ALLOCATOR": None, "DRIVER": "cuda"}
    before = os.environ.get("CXX")
    os.environ["CXX"] = "/absent/g++"
    try:
        done = run("no_compiler.py", **settings)
        assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
        assert "RuntimeWarning: glake is off" in done.stderr and "/absent/g++" in done.stderr
        done = run("no_compiler.py", **settings, STRICT=1)
        assert done.returncode != 0 and "AdapterBuildError" in done.stderr
    finally:
        os.environ.pop("CXX")
        if before is not None:
            os.environ["CXX"] = before


def test_initialised_cuda_is_refused(run):
    done = run("initialised_cuda.py", ALLOCATOR=None, DRIVER=None, SIM_MEMORY=None)
    assert done.stdout == "True\n", done.stderr


def test_build_adapter_command(built, jit_dir):
    environment = {**os.environ, "GLAKE_JIT_DIR": str(jit_dir)}
    command = [sys.executable, "-m", "glake.cli", "build-adapter"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(str(built["adapter"])), done.stderr
    done = subprocess.run([*command, "--check"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "no CUDA" in done.stderr
    absent = [*command, "--torch-headers", str(STUB)]
    done = subprocess.run(absent, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "torch/include" in done.stderr


def test_header_matrix():
    """Compiles by headers of other torch versions, if `tools/header_matrix.py --fetch` got them."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
    import header_matrix

    versions = header_matrix.available(header_matrix.cache_directory())
    if not versions:
        pytest.skip("no headers of other torch versions: tools/header_matrix.py --fetch")
    for version in versions:
        include = header_matrix.cache_directory() / version / "torch/include"
        adapter_build.check_headers(include)
