"""The same programs by PyTorch's own allocators and by glake.

The replay models must reserve as many bytes as the real code, and glake must make the driver calls
of expandable segments, call by call. docs/real.md explains each difference.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from glake.trace.replay import NEVER, load_trace, replay

libraries = pytest.importorskip("glake.dryrun.libraries")

PROGRAM = Path(__file__).parent / "programs" / "yardstick.py"
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
}
MEMORY = (
    "cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
    "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree",
)  # fmt: skip
WITHIN = 0.002


def measured(real_python, allocator, *arguments):
    clean = {name: text for name, text in os.environ.items() if name[:6] != "GLAKE_"}
    given = {"GLAKE_SIM_MEMORY": "20GiB", "GLAKE_SIM_DEVICES": "1", "GLAKE_SIM_PHANTOM": "1"}
    done = subprocess.run(
        [str(real_python), str(PROGRAM), *map(str, arguments)],
        env=libraries.environment(clean | given | ALLOCATORS[allocator] | {"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def yardstick(real_python, tmp_path_factory):
    """({allocator: {job: what the program says}}, the folder of the jobs' traces)."""
    folder = tmp_path_factory.mktemp("traces")
    told = {name: measured(real_python, name) for name in ("native", "expandable")}
    told["glake"] = measured(real_python, "glake", "--trace", folder)
    return told, folder


JOBS = (
    "training",
    "varying_lengths",
    "varying_lengths_in_little_memory",
    "side_streams",
    "side_streams_late",
    "many_small_tensors",
    "generation",
    "experts",
)


@pytest.mark.parametrize("policy", ["native", "expandable"])
@pytest.mark.parametrize("job", JOBS)
def test_a_replay_reserves_what_the_real_allocator_did(yardstick, job, policy):
    told, folder = yardstick
    real = told[policy][job]
    model = replay(
        load_trace(str(folder / f"{job}.trace")),
        policy,
        capacity=real["capacity"],
        complete_after=NEVER if real["late"] else 0,
    )
    assert model.oom is None
    difference = model.peak_physical_bytes / real["peak_reserved"] - 1
    assert abs(difference) <= WITHIN, (
        f"{policy}, {job}: the model holds {model.peak_physical_bytes / 2**20:.0f} MiB at its "
        f"peak, PyTorch {real['peak_reserved'] / 2**20:.0f} ({difference:+.2%})"
    )


def calls(steps, names):
    """How often each call was made in these steps, without the calls that are left out."""
    sums = {name: sum(step.get(name, (0, 0))[0] for step in steps) for name in names}
    return {name: count for name, count in sums.items() if count}


# docs/real.md, "Driver calls, call by call", explains each line in which the two differ.
TRAINING = {
    "expandable": {
        "cuMemAlloc": 2,
        "cuMemCreate": 93,
        "cuMemMap": 93,
        "cuMemSetAccess": 50,
        "cuMemAddressReserve": 2,
    },
    "glake": {
        "cuMemAlloc": 2,
        "cuMemCreate": 929,
        "cuMemMap": 929,
        "cuMemSetAccess": 57,
        "cuMemAddressReserve": 2,
    },
}


def test_memory_calls_of_a_training_are_those_in_the_docs(yardstick):
    told, _ = yardstick
    expandable = calls(told["expandable"]["training"]["steps"], MEMORY)
    assert expandable == TRAINING["expandable"], "another PyTorch: write docs/real.md anew"
    glake = calls(told["glake"]["training"]["steps"], MEMORY)
    more = {name: n for name, n in glake.items() if n > TRAINING["glake"].get(name, 0)}
    assert not more, f"more calls than docs/real.md says: {more}"


@pytest.mark.parametrize("allocator", ["expandable", "glake"])
def test_a_repeated_step_asks_the_driver_for_nothing(yardstick, allocator):
    told, _ = yardstick
    for step in told[allocator]["training"]["steps"][3:]:
        assert set(step) == {"cuStreamIsCapturing"}, step
        assert step["cuStreamIsCapturing"] == [1, 0.0]  # the optimizer asks, not the allocator


def test_events_of_side_streams_are_at_most_those_in_the_docs(yardstick):
    """Where work completes at once, glake finds the stream idle and records no event."""
    told, _ = yardstick
    names = ("cuEventRecord", "cuEventQuery", "cuStreamQuery")
    theirs = calls(told["expandable"]["side_streams"]["steps"], names)
    ours = calls(told["glake"]["side_streams"]["steps"], names)
    assert theirs["cuEventRecord"] >= 48 and "cuEventRecord" not in ours, (theirs, ours)
    assert sum(ours.values()) <= sum(theirs.values()) + 8, (theirs, ours)
