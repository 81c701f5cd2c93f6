"""Jobs of glake's tier of files for vLLM. Half a block is never kept: vllm_tier.py FOLDER."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from glake import _C, errors
from glake.integrations import figures
from glake.integrations.vllm_tier import FileJobs, GlakeTierManager
from glake.transfer.files import engine

FOLDER, SIZE = Path(sys.argv[1]), 300_000
blocks = np.random.default_rng(0).integers(0, 256, (6, SIZE), dtype=np.uint8)
paths = [str(FOLDER / f"{at % 2}" / f"{at}.bin") for at in range(6)]


def over(jobs: FileJobs, number: int) -> bool:
    jobs.wait_idle()
    ((told, well, seconds),) = jobs.get_finished()
    assert told == number and seconds >= 0 and jobs.get_finished() == []
    return well


def parts(of: np.ndarray) -> list[memoryview]:
    return [memoryview(row) for row in of]


jobs = FileJobs(depth=4)
jobs.store(1, paths, parts(blocks))
assert over(jobs, 1)
assert not list(FOLDER.rglob("*.tmp"))
jobs.store(2, paths[:2], parts(blocks[2:4]))  # they exist and stay as they are
assert over(jobs, 2)
back = np.zeros_like(blocks)
jobs.load(3, paths, parts(back))
assert over(jobs, 3) and (back == blocks).all() and jobs.loaded == {}
assert figures.told()["glake.integrations.vllm.tier_read_bytes"] == 6 * SIZE
assert not _C.driver_path()  # the scheduler's process needs no driver

Path(paths[2]).write_bytes(blocks[2].tobytes()[:1000])  # cut short
Path(paths[4]).unlink()
back[:] = 0
jobs.load(4, paths, parts(back))
assert not over(jobs, 4) and jobs.loaded == {4: 2} and (back[:2] == blocks[:2]).all()
assert not Path(paths[2]).exists()  # vLLM will compute and store it again
jobs.store(5, paths, parts(blocks))
assert over(jobs, 5) and Path(paths[2]).read_bytes() == blocks[2].tobytes()

before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # like a full disk
more = [str(FOLDER / "more" / f"{at}.bin") for at in range(6)]
written = figures.told()["glake.integrations.vllm.tier_written_bytes"]
jobs.store(6, more, parts(blocks))
assert not over(jobs, 6)
assert figures.told()["glake.integrations.vllm.tier_written_bytes"] == written
resource.setrlimit(resource.RLIMIT_FSIZE, before)
assert list((FOLDER / "more").iterdir()) == []  # no half block is left
jobs.store(7, ["/proc/glake/1.bin"], parts(blocks[:1]))
assert not over(jobs, 7)
jobs.store(8, more, parts(blocks))
jobs.shutdown()
assert len(list((FOLDER / "more").iterdir())) == 6
with pytest.raises(errors.InvalidArgument, match="depth= for both"):
    GlakeTierManager(n_read_threads=4)

# A job has more blocks than a process may open files. The disk is slow.
request, opened, many = engine._request, [], 300
many_paths = [str(FOLDER / "many" / f"{at}.bin") for at in range(many)]


def slow(*given):
    opened.append(len(os.listdir("/proc/self/fd")))
    time.sleep(0.01)
    return request(*given)


engine._request = slow
jobs, before_it = FileJobs(depth=4), len(os.listdir("/proc/self/fd"))
jobs.store(9, many_paths, parts(blocks[[0] * many]))
assert over(jobs, 9)
jobs.load(10, many_paths, parts(back[[0] * many]))
assert over(jobs, 10)
# In each thread an open file has two descriptors, and a third one lists the folder.
assert max(opened) <= before_it + 3 * 4, (before_it, max(opened))
jobs.shutdown()
jobs.store(11, more, parts(blocks))  # after shutdown() a job fails like any other
assert not over(jobs, 11)

# The process is killed in the middle. Files with a block's name are whole, and only those that
# were being written are left under other names.
child = os.fork()
if child == 0:
    FileJobs(depth=4).store(12, [f"{path}.2" for path in many_paths], parts(blocks[[1] * many]))
    time.sleep(60)
    os._exit(1)
while len(list((FOLDER / "many").glob("*.bin.2"))) < 20:
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
whole = list((FOLDER / "many").glob("*.bin.2"))
assert 20 <= len(whole) < many
assert all(each.read_bytes() == blocks[1].tobytes() for each in whole)
assert len(list((FOLDER / "many").glob("*.tmp"))) <= 4
print("stored")
