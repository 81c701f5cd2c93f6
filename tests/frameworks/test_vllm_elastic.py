"""vLLM's elastic KV cache, by vLLM's CUDA package over the simulated GPU of 1 GiB.

Its kernels compute nothing there, so its tokens mean nothing. Its memory is checked.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glake.dryrun import libraries

PROGRAM = Path(__file__).resolve().parent / "programs" / "vllm_elastic.py"
MIB, GIB = 1 << 20, 1 << 30
GROUP = 8 * MIB  # 32 blocks of 256 KiB


def environment(**more: str) -> dict[str, str]:
    asked = {
        "GLAKE_ALLOCATOR": "1",
        "GLAKE_DRIVER": "cuda",
        "GLAKE_SIM_MEMORY": "1GiB",
        "GLAKE_STRICT": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    return libraries.environment({**os.environ, **asked, **more})


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("VLLM_CUDA_PYTHON")
    if not found:
        pytest.skip("left out: VLLM_CUDA_PYTHON names no Python with vLLM's CUDA package")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's, which all ways load."""
    return tmp_path_factory.mktemp("elastic")


@pytest.fixture(scope="module")
def ours(python: str, folder: Path) -> Any:
    """An engine's answers."""
    return told(python, "elastic", folder)


def told(python: str, way: str, folder: Path, **more: str) -> Any:
    done = subprocess.run(
        [python, str(PROGRAM), way, str(folder)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    # vLLM's processes log on the same output, also at their end.
    answer = json.loads([line for line in done.stdout.splitlines() if line[:1] == "{"][-1])
    print(json.dumps(answer))
    return answer


def test_memory_follows_the_requests(python: str, folder: Path, ours: Any) -> None:
    stock = told(python, "stock", folder)
    assert ours["addresses"] == 4 * ours["memory"] == 4 * GIB
    assert ours["backed_idle"] == GROUP  # that of the null block
    # 16 requests of 1,008 tokens: 64 blocks of 256 KiB for each of those that ran at one time.
    assert stock["idle"] > 0.75 * GIB and ours["idle"] < 0.1 * GIB < ours["free_idle"]
    assert ours["idle"] + 16 * GROUP < ours["loaded"]["peak"] < ours["idle"] + 33 * GROUP
    assert stock["loaded"]["done"] == ours["loaded"]["done"]
    assert ours["after"] == ours["loaded"]["left"] <= ours["idle"] + 8 * GROUP + MIB  # kept
    assert ours["kept"] == [9, ours["kept"][1], 9 * GROUP] and ours["kept"][1] > 20
    # At the end vLLM leaves as much as without it.
    assert ours["end"][0] <= stock["end"][0] + 2 * MIB and ours["end"][1] == 0


def test_prefixes_are_found_where_memory_was_kept(ours: Any) -> None:
    assert ours["last_again"]["done"] == {"15": [8, 992]}
    assert ours["middle_again"]["done"] == {"6": [8, 0]}  # its groups were given back
    assert ours["cached_lie_in_memory"] and ours["kept_bytes_stay"]


def test_requests_wait_for_memory_and_end(ours: Any) -> None:
    waits, crowd = ours["waits"], ours["crowd"]
    assert waits["done_meanwhile"] < waits["then"] == 16 and waits["refusals"] > 0
    assert crowd["needed"] > ours["memory"] > crowd["peak"] > 0.8 * GIB
    assert crowd["tokens"] == [300] and crowd["refusals"] > 0 < crowd["preempted"]
    assert crowd["left"] == ours["after"] and crowd["cached_lie_in_memory"]


def test_groups_are_small_where_layers_lie_side_by_side(python: str, folder: Path) -> None:
    ours = told(python, "elastic", folder, VLLM_KV_CACHE_LAYOUT="BLHNC")
    assert ours["group"] == 8 and ours["backed_idle"] == 2 * MIB  # 8 blocks of 256 KiB
    assert ours["kept"][2] == 33 * 2 * MIB
    assert ours["last_again"]["done"] == {"15": [8, 992]}
    assert ours["middle_again"]["done"] == {"6": [8, 0]}
    assert ours["cached_lie_in_memory"] and ours["kept_bytes_stay"]
    assert ours["crowd"]["tokens"] == [300] and ours["crowd"]["left"] == ours["after"]


def test_two_engines_of_a_process_take_turns(python: str, folder: Path) -> None:
    ours = told(python, "pair", folder)
    assert [each["ended"] for each in ours["turns"]] == [40] * 4
    assert all(each["peak"] > 0.6 * GIB for each in ours["turns"])
    assert all(each["left"] < 0.25 * GIB for each in ours["turns"])
    assert ours["both"]["ended"] == 80 and sum(ours["both"]["refusals"]) > 0
    assert ours["end"] == 0


@contextmanager
def served(python: str, folder: Path, machine: str) -> Iterator["subprocess.Popen[str]"]:
    with (folder / f"{machine}.log").open("a") as log:
        child = subprocess.Popen(
            [python, str(PROGRAM), "serve", str(folder)],
            env=environment(GLAKE_SIM_MACHINE=machine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def heard(child: "subprocess.Popen[str]") -> Any:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            print(line, end="")
            return json.loads(line)
    raise AssertionError("the engine has ended")


def asked(child: "subprocess.Popen[str]", count: int) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{count}\n")
    child.stdin.flush()


def test_two_processes_take_turns(python: str, folder: Path) -> None:
    machine = f"elastic-{os.getpid()}"
    with served(python, folder, machine) as first:
        heard(first)
        with served(python, folder, machine) as second:
            free = heard(second)["free"]
            for child in (first, second, first):
                asked(child, 40)
                answer = heard(child)
                assert answer["ended"] == 40 and answer["peak"] > 0.6 * GIB
                # The driver has it again, but for what PyTorch caches of activations in each.
                assert answer["free"] > free - 160 * MIB
            for child in (first, second):
                asked(child, 40)
            both = [heard(child) for child in (first, second)]
            assert [each["ended"] for each in both] == [40, 40]
            for child in (first, second):
                assert child.stdin is not None
                child.stdin.close()
                assert heard(child)["backed"] == 0


def test_ranks_have_the_same_groups(python: str, folder: Path) -> None:
    machine = {"GLAKE_SIM_MACHINE": f"elastic-ranks-{os.getpid()}", "GLAKE_SIM_DEVICES": "2"}
    ours = told(python, "ranks", folder, **machine)
    assert ours["idle"] == [[GROUP, GROUP, [0]]] * 2
    ended, first, second = ours["loaded"]
    assert ended == 12 and first == second and first[1] > 11 * GROUP > 9 * GROUP >= first[0]
    ended, first, second = ours["less"]
    # The first rank had memory for groups for which the second had none, and gave it back.
    assert ended == 80 and first[2] == second[2] and first[0] == second[0] <= 9 * GROUP
    assert first[1] > second[1]


def test_settings_that_do_not_go_together_are_refused(python: str, folder: Path) -> None:
    ours = told(python, "refused", folder)
    assert ours["unknown"].startswith("InvalidArgument: ") and "keep" in ours["unknown"]
    assert ours["sleep"].startswith("NotOffered: ") and "sleep mode" in ours["sleep"]
    assert ours["size"].startswith("InvalidArgument: ")


def test_without_glakes_allocator_the_job_does_not_start(python: str, folder: Path) -> None:
    ours = told(python, "refused", folder, GLAKE_ALLOCATOR="0")
    assert "set GLAKE_ALLOCATOR=1" in ours["alone"] and ours["alone"].startswith("GlakeError")


def test_the_second_model_runner_warms_up_and_runs(python: str, folder: Path) -> None:
    ours = told(python, "runner", folder)
    assert ours["backed_idle"] == GROUP and ours["done"] and ours["end"] == 0
