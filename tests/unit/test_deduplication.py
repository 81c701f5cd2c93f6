"""glake.deduplicate(): equal weights of several processes exist once, and none can write them."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import glake
from glake import files
from glake.allocator import shards
from glake.allocator.shard_registry import Registry
from glake.errors import BusyTimeout, FileFailed, InvalidArgument, InvalidPointer, WrongType

PROGRAM = Path(__file__).parent / "programs" / "shared_weights.py"
MIB = 1 << 20
WEIGHTS = 3 * (3 * MIB + 512)  # bytes of what load() makes
SHARD = 10 * MIB  # the same in one shard, in whole granules


class Process:
    """A process with weights."""

    def __init__(self, folder: Path, **options: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GLAKE_")}
        env |= {"XDG_RUNTIME_DIR": str(folder), "GLAKE_DRIVER": "sim"}
        env |= {"GLAKE_SIM_MACHINE": f"dedup-{os.getpid()}-{folder.name}"}
        env |= {"GLAKE_SIM_MEMORY": "256MiB", **options}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def tell(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=60)
            assert self._process.returncode == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a process. All that a test starts share a registry and a GPU."""
    started: list[Process] = []

    def one(**options: str) -> Process:
        started.append(Process(tmp_path, **options))
        return started[-1]

    try:
        yield one
        for process in started:
            process.end()
    finally:
        for process in started:
            process.kill()


def both(start: Any) -> tuple[Process, Process]:
    """Two processes that share their weights, the first of which has made the shard."""
    first, second = start(), start()
    for process in (first, second):
        process.ask("load")
    assert first.ask("share")["found_bytes"] == 0
    assert second.ask("share")["found_bytes"] == WEIGHTS
    return first, second


def test_two_processes_have_one_copy(start: Any) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.ask("load")
    private = first.ask("used"), second.ask("used")
    told = first.ask("share")
    assert told == {
        "shared_bytes": WEIGHTS, "found_bytes": 0, "given_back_bytes": WEIGHTS, "shards": 1,
    }  # fmt: skip
    told = second.ask("share")
    assert told["found_bytes"] == told["given_back_bytes"] == told["shared_bytes"] == WEIGHTS
    assert private[1] == 2 * SHARD and first.ask("used") == SHARD
    assert first.ask("intact") and second.ask("intact")
    stats = second.ask("stats")
    assert stats["glake.deduplication.found_bytes"] == WEIGHTS
    assert stats["glake.deduplication.published_bytes"] == 0
    assert stats["glake.deduplication.mapped_bytes"] == WEIGHTS
    assert first.ask("share")["shared_bytes"] == 0  # all are shared already
    for process in (first, second):
        process.ask("drop")
    assert first.ask("used") == 0


def test_shared_weights_cannot_be_written(start: Any) -> None:
    for process in both(start):
        refused = process.ask("change", "layer1", 700, 9)
        assert refused["error"] == "InvalidPointer" and "may only be read" in refused["text"]
        assert process.ask("intact")
        read_only, text = process.ask("interfaces")
        assert read_only and "DLPack 1.0" in text


def test_texts_name_what_a_shared_weight_is(start: Any) -> None:
    process = start()
    process.ask("load_in_region", "model")
    assert process.ask("share")["shards"] == 1
    pin, share, pause = process.ask("as_a_block", "model")
    for text in (pin, share):
        assert text.startswith("InvalidPointer: 0x") and "in a shard" in text
    assert "region 'model' has no memory" in pause and "moved into shards" in pause
    process.ask("undo")
    pin, share, pause = process.ask("as_a_block", "model")
    assert pin == share == "" and "shards" not in pause  # private now, and outside the region


def test_weights_are_private_after_close(start: Any) -> None:
    first, second = both(start)
    first.ask("undo")
    assert first.ask("private") and not second.ask("private")
    assert first.ask("change", "layer1", 700, 9) is None
    assert not first.ask("intact") and second.ask("intact")
    third = start()  # the shard lives on where its maker has left it
    third.ask("load")
    assert third.ask("share")["found_bytes"] == WEIGHTS
    assert third.ask("used") == 2 * SHARD


def test_the_maker_is_killed(start: Any) -> None:
    first, second = both(start)
    first.kill()
    assert second.ask("intact") and second.ask("used") == SHARD
    third = start()
    third.ask("load")
    assert third.ask("share")["found_bytes"] == WEIGHTS  # by the second's text
    second.kill()
    third.kill()
    fourth = start()  # nobody is left, and it makes the shard anew
    fourth.ask("load")
    assert fourth.ask("share")["found_bytes"] == 0
    assert fourth.ask("intact") and fourth.ask("used") == SHARD


def test_one_byte_differs(start: Any) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.ask("load")
    second.ask("change", "layer2", 3 * MIB + 511, 1)
    first.ask("share")
    assert second.ask("share")["found_bytes"] == 0
    assert first.ask("intact") and not second.ask("intact")
    assert first.ask("used") == 2 * SHARD


def test_only_shards_that_differ_are_private(start: Any) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.ask("load")
    second.ask("change", "layer2", 0, 1)
    assert first.ask("share", 4 * MIB)["shards"] == 3
    told = second.ask("share", 4 * MIB)
    assert told["shards"] == 3 and told["found_bytes"] == WEIGHTS * 2 // 3


def test_four_processes_begin_at_once(start: Any) -> None:
    processes = [start() for _ in range(4)]
    for process in processes:
        process.ask("load")
    for process in processes:
        process.tell("share")
    told = [process.answer() for process in processes]
    assert sorted(each["found_bytes"] for each in told) == [0, WEIGHTS, WEIGHTS, WEIGHTS]
    assert all(process.ask("intact") for process in processes)
    assert processes[0].ask("used") <= SHARD + 3 * 2 * MIB
    for process in processes:
        process.ask("used")  # empties its cache
    assert processes[0].ask("used") == SHARD


def test_equal_weights_of_one_process(start: Any) -> None:
    process = start()
    process.ask("load", "actor.")
    process.ask("load", "reference.")
    told = process.ask("share")
    assert told["shared_bytes"] == 2 * WEIGHTS and told["found_bytes"] == WEIGHTS
    assert process.ask("used") == SHARD
    assert process.ask("intact", "actor.") and process.ask("intact", "reference.")
    process.ask("load", "later.")  # a model that is loaded later, in a call of its own
    told = process.ask("share")
    assert told["found_bytes"] == told["shared_bytes"] == WEIGHTS
    process.ask("undo")
    process.ask("undo")
    assert process.ask("private") and process.ask("intact", "reference.")


@pytest.mark.parametrize("gone", ["first.", "second."])
def test_one_of_two_shards_with_equal_weights_goes(start: Any, gone: str) -> None:
    process = start()
    process.ask("load", "first.", 2)
    process.ask("share")
    process.ask("load", "second.")  # the same two, and a third one: a shard of its own
    assert process.ask("share")["found_bytes"] == 0
    process.ask("drop_some", gone)
    process.ask("load", "third.", 2)
    told = process.ask("share")
    assert told["found_bytes"] == told["shared_bytes"] == WEIGHTS // 3 * 2
    assert process.ask("intact", "third.")


def test_one_more_shard_is_room_enough(start: Any) -> None:
    process = start()
    process.ask("load", "", 12, 4 * MIB)
    process.ask("share", 4 * MIB)  # now the engine is open, which takes memory of the GPU
    process.ask("undo")
    process.ask("fill", 4 * MIB)
    assert process.ask("share", 4 * MIB)["shards"] == 12
    assert process.ask("intact")
    process.ask("undo")  # which needs no more room than that
    assert process.ask("private") and process.ask("intact")


def test_no_room_for_a_shard(start: Any) -> None:
    process = start()
    process.ask("load", "", 12)
    process.ask("share", 4 * MIB)
    process.ask("undo")
    process.ask("fill", 2 * MIB)
    refused = process.ask("share", 4 * MIB)
    assert refused["error"] == "OutOfMemory" and "shard" in refused["text"]
    assert process.ask("private") and process.ask("intact")


def test_no_room_for_a_later_shard(start: Any) -> None:
    process = start()
    process.ask("load")
    # Each shard has one cuMemCreate, tried again with an empty cache. The second shard's fails.
    before = process.ask("used")
    process.ask("fail", "cuMemCreate", 2, 2, 2)
    refused = process.ask("share", 4 * MIB)
    assert refused["error"] == "OutOfMemory"
    process.ask("fail")
    assert process.ask("private") and process.ask("intact")
    assert process.ask("used") <= before + 2 * MIB  # a granule's edge lies elsewhere now
    assert process.ask("share", 4 * MIB)["shards"] == 3


def test_no_room_to_undo(start: Any) -> None:
    """What cannot be made private again stays shared, with the same bytes, until it can."""
    process = start()
    process.ask("load")
    process.ask("fail", "cuMemCreate", 2, 2, -1)
    refused = process.ask("share", 4 * MIB)
    assert refused["error"] == "OutOfMemory" and refused["begun"] == WEIGHTS // 3
    assert process.ask("intact") and not process.ask("private")
    assert process.ask("undo")["error"] == "OutOfMemory"
    assert process.ask("intact") and not process.ask("private")
    process.ask("fail")
    assert process.ask("undo") is None
    assert process.ask("intact") and process.ask("private")


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_a_process_is_killed_while_it_makes_a_shard(start: Any, delay_s: float) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.ask("load", "", 8)
    first.tell("share", 8 * MIB)
    time.sleep(delay_s)
    first.kill()
    told = second.ask("share", 8 * MIB)
    assert told["shared_bytes"] == told["given_back_bytes"] == WEIGHTS // 3 * 8
    assert second.ask("intact")
    used = second.ask("used")
    assert used <= WEIGHTS // 3 * 8 + 4 * 2 * MIB  # nothing is left of the other


CALLS = ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
         "cuMemImportFromShareableHandle", "cuMemcpyAsync", "cuCtxSynchronize")  # fmt: skip


@pytest.mark.parametrize("symbol", CALLS)
def test_a_refused_call_leaves_weights_private(start: Any, symbol: str) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.ask("load")
    refusals = 0
    for process, found in ((first, 0), (second, WEIGHTS)):
        process.ask("share")  # now the engine is open, which makes such calls too
        process.ask("undo")
        for k in range(1, 5):  # the engine's buffers make some of the first calls, at times
            before = process.ask("used")
            # A copy is tried again, so all of them fail.
            process.ask("fail", symbol, k, 999, -1 if symbol == "cuMemcpyAsync" else 1)
            told = process.ask("share")
            process.ask("fail")
            if "error" in told:
                refusals += 1
                assert told["error"] in ("DriverError", "CopyFailed", "OutOfMemory"), told
                assert process.ask("private")
                assert process.ask("used") <= before + 2 * MIB
            else:
                process.ask("undo")
            assert process.ask("intact")
        assert process.ask("share")["found_bytes"] == found
    assert refusals > 0


def test_a_driver_without_read_only_access(start: Any) -> None:
    process = start()
    process.ask("load")
    refusals = []
    for k in list(range(1, 7)) * 4:  # the engine's buffers make such calls too, at times
        process.ask("fail", "cuMemSetAccess", k, 801, 1)
        told = process.ask("share")
        process.ask("fail")
        if "error" not in told:
            process.ask("undo")
            continue
        refusals.append(told)
        assert process.ask("private") and process.ask("intact")
    assert all(told["error"] == "DriverError" for told in refusals), refusals
    assert any("read-only" in told["text"] for told in refusals), refusals


def test_gpus_share_nothing(start: Any) -> None:
    """Equal weights of two GPUs are two shards, in one process and between two."""
    first, second = start(GLAKE_SIM_DEVICES="2"), start(GLAKE_SIM_DEVICES="2")
    first.ask("load", "here.")
    first.ask("load", "there.", 3, 3 * MIB + 512, 1)
    told = first.ask("share")
    assert told["found_bytes"] == 0 and told["shards"] == 2
    second.ask("load", "", 3, 3 * MIB + 512, 1)
    assert second.ask("share")["found_bytes"] == WEIGHTS
    assert first.ask("intact", "here.") and first.ask("intact", "there.")
    first.ask("undo")
    assert first.ask("private") and second.ask("intact")


def test_debug_modes(start: Any) -> None:
    """New and freed blocks are filled, after other work of their stream; guards are around them."""
    first = start(GLAKE_DEBUG="guard,poison,trace,sync")
    second = start()
    for process in (first, second):
        process.ask("load")
    assert first.ask("share")["found_bytes"] == 0
    assert second.ask("share")["found_bytes"] == WEIGHTS
    first.ask("undo")
    assert first.ask("private") and first.ask("intact") and second.ask("intact")


def test_an_array_keeps_the_address(start: Any) -> None:
    process = start()
    process.ask("load")
    process.ask("export")
    refused = process.ask("share")
    assert refused["error"] == "InvalidArgument" and "DLPack" in refused["text"]
    assert process.ask("private")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "a torch.nn.Module, or a mapping"),
        ([1], "a torch.nn.Module, or a mapping"),
        ({1: b""}, "name is a string"),
        ({"a": 1.5}, "'a' is a CUDA tensor or a glake.Buffer, not a float"),
    ],
)
def test_wrong_types(given: Any, text: str) -> None:
    with pytest.raises(WrongType, match=re.escape(text)):
        glake.deduplicate(given)


def test_a_shard_of_no_size() -> None:
    with pytest.raises(InvalidArgument, match="shard_size"):
        glake.deduplicate({}, 100)
    assert glake.deduplicate({}).shared_bytes == 0


def test_tensors_that_cannot_be_shared() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="only memory of a GPU"):
        glake.deduplicate(torch.nn.Linear(2, 2))
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(InvalidArgument, match="TwoTensor, whose memory others hold"):
        glake.deduplicate({"a": TwoTensor(torch.ones(2), torch.ones(2))})


def test_the_benchmark_counts_one_copy() -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "allocator" / "deduplication.py"
    env = {name: value for name, value in os.environ.items() if not name.startswith("GLAKE_")}
    command = [sys.executable, str(script), "--mib", "30", "--processes", "2", "--json"]
    (row,) = json.loads(subprocess.check_output(command, env=env, text=True, timeout=120))
    assert row["private_bytes"] == 2 * row["shared_bytes"]
    assert row["weights_bytes"] <= row["shared_bytes"] < row["weights_bytes"] + 4 * MIB


def test_the_registry_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "glake-shards").mkdir(mode=0o755)
    (tmp_path / "glake-shards").chmod(0o755)
    with pytest.raises(InvalidArgument, match="alone"):
        Registry()
    (tmp_path / "glake-shards").chmod(0o700)
    assert Registry().folder == files.user_folder("glake-shards")


def test_a_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    registry, order = Registry(), []

    def other() -> None:
        with registry.locked("key"):
            order.append("other")

    with registry.locked("key"):
        waiting = threading.Thread(target=other)
        waiting.start()
        with pytest.raises(BusyTimeout, match="same shard"), registry.locked("key", 0.05):
            order.append("never")
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]


def test_a_forked_child_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    registry = Registry()
    reading, writing = os.pipe()
    with registry.locked("key"):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent has closed its end
            os._exit(0)
    try:
        with registry.locked("key", 0.05):
            pass
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_lock_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    registry = Registry()
    (registry.folder / "key.lock").mkdir()
    registry.tidy()
    with pytest.raises(FileFailed, match=r"key\.lock"), registry.locked("key"):
        pass


def test_a_stopped_process_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to it takes half a minute. Its texts stay, because it may go on."""
    stopped = [f"glake-shard-1:{7:016x}:{number}" for number in (0, 1)]
    running = f"glake-shard-1:{8:016x}:0"
    asked: list[str] = []

    def opened(text: str, device: int) -> tuple[int, int]:
        asked.append(text)
        if text == running:
            return 4096, MIB
        raise InvalidPointer("does not answer")

    monkeypatch.setattr(shards._C, "shard_open", opened)
    monkeypatch.setattr(shards, "SILENCE_S", 0.0)
    content, silent = shards.Content(0, nbytes=MIB), set[str]()
    assert shards._open_any(stopped[:1], content, silent) == (None, stopped[:1])
    texts = [*stopped, running]
    assert shards._open_any(texts, content, silent) == (4096, [running, *stopped])
    assert asked == [stopped[0], running]


def test_what_ended_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    registry = Registry()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for key, pid in (("gone", gone.pid), ("here", os.getpid())):
        with registry.locked(key):
            registry.store(key, [f"glake-shard-1:{pid:016x}:0"])
    with registry.locked("here"):
        mine, other = registry.texts("here"), f"glake-shard-1:{gone.pid:016x}:1"
        registry.store("here", [other, *mine])
    assert len(mine) == 1 and registry.texts("here") == mine
    (registry.folder / "here.json").chmod(0o600)
    (registry.folder / f"gone.json.{'0' * 16}.part").touch()  # it was killed while it wrote
    registry.tidy()
    assert sorted(each.name for each in registry.folder.iterdir()) == ["here.json", "here.lock"]
    (registry.folder / "here.json").write_text("{not json")
    assert registry.texts("here") == []
