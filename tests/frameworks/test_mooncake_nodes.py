"""Two nodes over Mooncake's transfer engine, with the same checks as tests/transfer has for TCP and
NIXL."""

import ctypes.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def verbs(folder: Path) -> str:
    """The folders for LD_LIBRARY_PATH in which the engine finds libibverbs.so.1, which it needs
    even without RDMA. "" if the system has the library. Otherwise it is the one of NIXL's package.
    """
    if ctypes.util.find_library("ibverbs"):
        return ""
    brought = Path(sysconfig.get_path("purelib")) / "nixl_cu12.libs"
    (library,) = brought.glob("libibverbs-*.so.*")
    folder.mkdir()
    (folder / "libibverbs.so.1").symlink_to(library)
    return f"{folder}{os.pathsep}{brought}"


def test_nodes_over_mooncake(packages: str, tmp_path: Path) -> None:
    mooncake = tmp_path / "packages"
    mooncake.mkdir()
    for name in ("mooncake", "mooncake_transfer_engine_non_cuda.libs"):
        assert (Path(packages) / name).is_dir(), packages
        (mooncake / name).symlink_to(Path(packages) / name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "inside/nodes.py"],
        env={
            **{name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"},
            "GLAKE_DRIVER": "sim:dgx_a100",
            "GLAKE_SIM_MEMORY": "128MiB",
            "LD_LIBRARY_PATH": verbs(tmp_path / "verbs"),
            "NODE_BACKEND": "mooncake",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
        },
        cwd=ROOT / "tests" / "transfer",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
