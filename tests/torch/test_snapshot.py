"""Snapshots of training in the emulation, read by torch's own memory_viz."""

import subprocess
import sys
from pathlib import Path


def test_memory_viz_reads_a_snapshot(passes, tmp_path: Path) -> None:
    pickled = tmp_path / "snapshot.pickle"
    passes("snapshot_for_viz.py", str(pickled))
    page = tmp_path / "page.html"
    for action in ("trace_plot", "segment_plot"):
        command = [sys.executable, "-m", "torch.cuda._memory_viz", action, str(pickled)]
        subprocess.run([*command, "-o", str(page)], check=True, timeout=60)
        assert "add_local_files" in page.read_text()
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "stats", str(pickled)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert "total_allocated" in done.stdout


def test_stacks_from_threads_and_backward(passes) -> None:
    passes("stacks.py")
