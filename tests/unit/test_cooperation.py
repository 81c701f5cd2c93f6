"""Processes on one simulated GPU that give idle memory back to each other (option cooperate)."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from glake.transfer.topology.node import simulated_uuid

MIB = 1 << 20
WORKER = Path(__file__).with_name("cooperating_worker.py")
DRIVER = Path(__file__).resolve().parents[1] / "transfer" / "inside"


class Worker:
    """A process with a GPU of 256 MiB, which it shares with others of the same machine."""

    def __init__(self, machine: str, **options: str) -> None:
        settings = {"DRIVER": "sim", "SIM_MACHINE": machine, "SIM_MEMORY": "256MiB"} | options
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            env={**clean, **{f"GLAKE_{name}": value for name, value in settings.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self, expression: str) -> None:
        assert self.process.stdin is not None
        print(expression, file=self.process.stdin, flush=True)

    def do(self, expression: str) -> object:
        self.begin(expression)
        return eval(self.line())

    def take(self, name: str, mib: int) -> object:
        return self.do(f"kept.update({name}=glake.empty({mib} << 20))")

    def give(self, name: str) -> object:
        return self.do(f"kept.pop({name!r}).free()")

    def stat(self, name: str) -> int:
        found = self.do(f"int(_C.stats()[{name!r}])")
        assert isinstance(found, int)
        return found

    def reserved(self) -> int:
        return self.stat("reserved_bytes.all.current") // MIB

    def stop(self) -> None:
        """Stops it. All of its threads stand still afterwards: a busy machine may take its time."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def machine() -> str:
    return f"cooperation{uuid.uuid4().hex[:12]}"


@pytest.fixture
def workers(machine: str) -> Iterator[list[Worker]]:
    made = [Worker(machine, COOPERATE="1") for _ in range(3)]
    yield made
    for worker in made:
        worker.end()


def holds_idle(worker: Worker, mib: int) -> None:
    worker.take("a", mib)
    worker.give("a")
    assert worker.reserved() == mib


def test_idle_memory_goes_to_who_needs_it(workers: list[Worker]) -> None:
    one, two, three = workers
    three.take("live", 40)
    holds_idle(one, 100)
    holds_idle(two, 100)
    assert three.take("a", 150) is None
    assert one.reserved() + two.reserved() == 256 - 190  # exactly what was missing
    assert three.stat("glake.neighbours_gave_bytes") == 134 * MIB
    assert three.stat("glake.neighbours_asked") == 1
    assert three.stat("num_ooms") == 0
    assert one.stat("glake.gave_neighbours_bytes") + two.stat("glake.gave_neighbours_bytes") == (
        134 * MIB
    )
    three.give("a")
    assert one.take("b", 200) is None  # and the other way
    assert two.reserved() + three.reserved() == 56 and three.do("_C.check(0)") is None


def test_blocks_stay_whole_where_memory_is_given(workers: list[Worker]) -> None:
    one, two, _ = workers
    one.take("live", 30)
    one.do("glake.transfer.copy(kept['live'], b'\\x07' * (30 << 20)).wait() and None")
    one.take("a", 150)
    one.give("a")
    assert two.take("a", 200) is None
    one.do("kept.update(to=bytearray(30 << 20))")
    one.do("glake.transfer.copy(kept['to'], kept['live']).wait() and None")
    assert one.do("set(kept['to'])") == {7}


def test_what_nobody_can_give_is_out_of_memory(workers: list[Worker]) -> None:
    one, two, three = workers
    one.take("a", 100)
    holds_idle(two, 60)
    told = three.take("a", 200)
    assert isinstance(told, str) and told.startswith("OutOfMemory: ")
    assert "2 of this user's processes gave 0 bytes back" in told or "gave 60.00 MiB" in told
    assert three.stat("num_ooms") == 1
    assert three.take("a", 150) is None


def test_a_limit_is_not_the_neighbours_matter(machine: str, workers: list[Worker]) -> None:
    holds_idle(workers[0], 200)
    limited = Worker(machine, COOPERATE="1", LIMIT="40MiB")
    try:
        assert "OutOfMemory" in str(limited.take("a", 50))
        assert limited.stat("glake.neighbours_asked") == 0 and workers[0].reserved() == 200
    finally:
        limited.end()


def test_who_does_not_cooperate_keeps_its_memory(machine: str, workers: list[Worker]) -> None:
    alone = Worker(machine)
    try:
        holds_idle(alone, 200)
        told = workers[0].take("a", 100)
        assert "no other process of this user cooperates on this GPU" in str(told)
        assert "OutOfMemory" in str(told) and alone.reserved() == 200
        workers[0].take("a", 20)
        assert "GLAKE_COOPERATE=1 in each" in str(alone.take("b", 250))
    finally:
        alone.end()


def test_other_kinds_of_requests_are_helped(workers: list[Worker]) -> None:
    one, two, _ = workers
    for asks in (
        "kept.update(a=glake.empty(150 << 20, contiguous=True))",
        "kept.update(a=glake.reserve('1GiB')) or kept['a'].back(0, 150 << 20)",
    ):
        holds_idle(one, 200)
        assert two.do(asks) is None
        assert one.reserved() <= 106
        two.give("a")
        two.do("_C.empty_cache(0)")
        one.do("_C.empty_cache(0)")


def test_a_region_that_wakes_is_helped(workers: list[Worker]) -> None:
    one, two, _ = workers
    two.do("kept.update(region=glake.region('r')) or kept['region'].__enter__()")
    two.take("a", 150)
    two.do("kept['region'].__exit__(None, None, None)")
    two.do("glake.pause('r') and None")
    holds_idle(one, 200)
    assert "Error" not in str(two.do("glake.resume('r') and None"))
    assert one.reserved() <= 106 and two.do("kept['a'].nbytes") == 150 << 20


def test_a_stopped_process_holds_up_nobody_for_long(workers: list[Worker]) -> None:
    one, two, three = workers
    holds_idle(one, 100)
    holds_idle(two, 100)
    one.stop()
    try:
        began = time.monotonic()
        assert three.take("a", 150) is None  # whoever is asked first
        told = str(three.take("b", 60))
        assert time.monotonic() - began < 30
        assert "OutOfMemory" in told and "did not answer" in told
    finally:
        one.go_on()
    assert three.take("b", 60) is None


def test_many_stopped_processes_hold_up_nobody_for_long(
    machine: str, workers: list[Worker]
) -> None:
    one, two, three = workers
    others = [Worker(machine, COOPERATE="1") for _ in range(6)]
    stopped = [one, *others]
    for worker in stopped:
        worker.take("a", 1)
    for worker in stopped:
        worker.stop()
    try:
        two.take("live", 10)
        for most in (15, 8):  # those that were silent get little time from then on
            began = time.monotonic()
            told = str(three.take("a", 240))
            assert time.monotonic() - began < most
            assert "OutOfMemory" in told and "8 of this user's processes gave 0 bytes" in told
            assert "7 did not answer" in told
        two.take("idle", 190)
        two.give("idle")
        began = time.monotonic()
        assert three.take("a", 200) is None
        assert time.monotonic() - began < 1  # those that answer are asked first
    finally:
        for worker in stopped:
            worker.go_on()
        for worker in others:
            worker.end()


def test_who_was_stopped_gives_nothing_to_those_that_wait_no_longer(
    workers: list[Worker],
) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    one.stop()
    try:
        assert "did not answer" in str(two.take("a", 100))
    finally:
        one.go_on()
    time.sleep(0.5)
    assert one.reserved() == 200 and one.stat("glake.gave_neighbours_bytes") == 0
    assert two.take("a", 100) is None
    assert one.stat("glake.gave_neighbours_bytes") == two.stat("glake.neighbours_gave_bytes")


def test_no_descriptor_is_named(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    two.do("kept.update(resource=__import__('resource'), warm=glake.empty(1))")
    limit = "kept['resource'].setrlimit(kept['resource'].RLIMIT_NOFILE, ({}, {}))"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    two.do(limit.format(3, most[1]))
    told = str(two.take("a", 100))
    two.do(limit.format(*most))
    assert "OutOfMemory" in told and "no other process gave memory back" in told
    assert "others could not be asked: /proc/net/unix cannot be read: Too many open files" in told
    assert "ulimit -n" in told
    assert two.stat("glake.neighbours_asked") == 1 and two.stat("num_ooms") == 1
    assert two.take("a", 100) is None and two.stat("num_ooms") == 1


def test_who_has_no_descriptor_gives_later(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    one.do("kept.update(resource=__import__('resource'), warm=glake.empty(1))")
    limit = "kept['resource'].setrlimit(kept['resource'].RLIMIT_NOFILE, ({}, {}))"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    one.do(limit.format(3, most[1]))
    assert "did not answer" in str(two.take("a", 100))
    one.do(limit.format(*most))
    assert two.take("a", 100) is None


def test_separate_machines_do_not_ask_each_other(machine: str, workers: list[Worker]) -> None:
    """Their GPUs are not the same ones."""
    other = Worker(machine + "-other", COOPERATE="1")
    try:
        holds_idle(other, 200)
        workers[0].take("live", 200)
        other.stop()  # which nobody notices
        began = time.monotonic()
        told = str(workers[1].take("a", 100))
        assert time.monotonic() - began < 1 and "did not answer" not in told
        other.go_on()
        assert "OutOfMemory" in told and "1 of this user's processes gave 0 bytes" in told
        assert other.stat("glake.gave_neighbours_bytes") == 0 and other.reserved() == 200
        for worker, name in ((workers[0], machine), (other, machine + "-other")):
            uuid_of = worker.do("_C.device_uuid(0).hex()")
            assert simulated_uuid(0, name).replace("-", "") == f"GPU{uuid_of}"
    finally:
        other.end()


def test_those_who_exit_at_any_moment(machine: str, workers: list[Worker]) -> None:
    """A process that exits while it gives, or is asked, exits as ever."""
    three = workers[2]
    for turn in range(8):
        other = Worker(machine, COOPERATE="1", SIM_CALL_DELAY_US="cuMemUnmap=100")
        holds_idle(other, 220)
        three.begin("kept.update(a=glake.empty(200 << 20))")
        time.sleep(0.002 * turn)
        other.begin("sys.exit()")
        assert other.process.wait(60) == 0
        other.end()
        told = eval(three.line())
        assert told is None or "OutOfMemory" in told
        if told is None:
            three.give("a")
        three.do("_C.empty_cache(0)")


@pytest.mark.parametrize("seed", range(3))
def test_figures_add_up_over_random_programs(workers: list[Worker], seed: int) -> None:
    """What was given is what was got, and each refusal counts once."""
    dice = random.Random(seed)
    live: dict[Worker, list[str]] = {worker: [] for worker in workers}
    refused = dict.fromkeys(workers, 0)
    for step in range(120):
        worker = dice.choice(workers)
        if live[worker] and dice.random() < 0.5:
            worker.give(live[worker].pop(dice.randrange(len(live[worker]))))
            continue
        name, mib = f"b{step}", dice.randrange(1, 90)
        ask = dice.choice(
            (
                f"kept.update({name}=glake.empty({mib} << 20))",
                f"kept.update({name}=glake.empty({mib} << 20, contiguous=True))",
                f"kept.update({name}=glake.reserve('1GiB')) or kept[{name!r}].back(0, {mib} << 20)",
            )
        )
        told = worker.do(ask)
        if told is None:
            live[worker].append(name)
        else:
            assert "OutOfMemory" in str(told)
            refused[worker] += 1
    gave = sum(worker.stat("glake.gave_neighbours_bytes") for worker in workers)
    assert gave == sum(worker.stat("glake.neighbours_gave_bytes") for worker in workers) > 0
    for worker in workers:
        assert worker.stat("num_ooms") == refused[worker]
        assert worker.stat("glake.neighbours_asked") >= refused[worker]
        assert worker.do("_C.check(0)") is None


def test_who_waits_for_its_work_to_give_serves_its_own_threads(
    machine: str, workers: list[Worker]
) -> None:
    """Work may wait for what the process does next. So nothing of it may wait for the work."""
    two = workers[1]
    one = Worker(machine, COOPERATE="1", SIM_SCHEDULE="threaded")
    try:
        one.do(f"sys.path.insert(0, {str(DRIVER)!r})")
        one.take("a", 100)
        one.do("kept.update(stuck=__import__('driver').Stuck(0, at_once=False))")
        one.do("setattr(kept['stuck'], 'handle', 0) or kept['stuck'].hold()")
        one.do("kept['stuck'].fill(kept['a'].ptr, 7, 100 << 20)")
        one.give("a")
        two.begin("kept.update(a=glake.empty(200 << 20))")
        time.sleep(0.5)  # it asks, and the work is waited for
        one.do("__import__('threading').Timer(2, kept['stuck'].release).start()")
        began = time.monotonic()
        one.take("b", 120)
        assert time.monotonic() - began < 1
        assert "OutOfMemory" in str(eval(two.line()))
        one.give("b")
        assert two.take("a", 200) is None
        assert one.stat("glake.gave_neighbours_bytes") >= 44 * MIB
    finally:
        one.end()


def test_those_who_end_at_any_moment(machine: str, workers: list[Worker]) -> None:
    three = workers[2]
    for turn in range(8):
        other = Worker(machine, COOPERATE="1")
        holds_idle(other, 220)
        three.begin("kept.update(a=glake.empty(200 << 20))")
        time.sleep(0.002 * turn)
        other.end()
        told = eval(three.line())
        assert told is None or "OutOfMemory" in told
        if told is None:
            three.give("a")
        three.do("_C.empty_cache(0)")


def test_two_that_run_out_at_once(workers: list[Worker]) -> None:
    one, two, _ = workers
    for _ in range(5):
        holds_idle(one, 90)
        holds_idle(two, 90)
        for worker in (one, two):
            worker.begin("kept.update(b=glake.empty(120 << 20))")
        assert [eval(worker.line()) for worker in (one, two)] == [None, None]
        for worker in (one, two):
            worker.give("b")
            worker.do("_C.empty_cache(0)")


def places(worker: Worker) -> list[str]:
    """The names of the process's sockets."""
    with open("/proc/net/unix", encoding="utf-8") as table:
        names = {line.split()[-1] for line in table if "@glake-give-back-" in line}
    return [name for name in names if f"-{worker.process.pid}-" in name]


def test_what_is_no_question_changes_nothing(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    (name,) = places(one)
    for junk in (b"", b"x", bytes(32), struct.pack("<II16sQ", 0x676C6B31, 0, bytes(16), 1 << 40)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect("\0" + name[1:])
            other.send(junk)
    assert one.reserved() == 200


def test_connections_that_never_ask_delay_nobody(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    (name,) = places(one)
    with contextlib.ExitStack() as silent:
        for _ in range(40):  # more than are kept
            kind = socket.SOCK_SEQPACKET
            other = silent.enter_context(socket.socket(socket.AF_UNIX, kind))
            other.connect("\0" + name[1:])
        began = time.monotonic()
        assert two.take("a", 150) is None
        assert time.monotonic() - began < 1  # each is waited for so long


def lies(liar: socket.socket) -> None:
    """Says to each that asks that it gave more memory than there is. Ends with the socket."""
    with contextlib.suppress(OSError):
        while True:
            asked, _ = liar.accept()
            with asked:
                asked.recv(64)
                asked.send(struct.pack("<IIQ", 0x676C6B31, 1, 1 << 63))


@pytest.mark.parametrize("liars", [1, 3])
def test_sockets_that_lie(workers: list[Worker], liars: int) -> None:
    """Anybody can listen under such a name. Whoever gave in vain is asked after the others."""
    one, two, three = workers
    one.do("_C.free(_C.malloc(1)) or _C.empty_cache(0)")  # listens from then on
    gpu = int(places(one)[0].rsplit("-", 1)[1]) >> 32 << 32
    with contextlib.ExitStack() as opened:
        for number in range(liars):
            liar = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            liar.bind(f"\0glake-give-back-{os.geteuid()}-1-{gpu + number}")
            liar.listen()
            threading.Thread(target=lies, args=(liar,), daemon=True).start()
            opened.callback(liar.shutdown, socket.SHUT_RDWR)
        one.take("a", 150)
        assert "OutOfMemory" in str(two.take("a", 150))
        one.give("a")
        if liars == 1:
            for _ in range(3):
                assert two.take("a", 200) is None
                two.give("a")
                two.do("_C.empty_cache(0)")
                holds_idle(one, 150)
        # Sums of what liars say stay sums of what a GPU has.
        assert two.stat("glake.neighbours_gave_bytes") <= 20 * 256 * MIB
    two.do("_C.empty_cache(0)")
    holds_idle(three, 60)
    assert two.take("b", 100) is None


def test_it_ends_with_the_process_and_with_a_shutdown(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    assert len(places(one)) == 1
    one.do("_C.shutdown()")
    assert places(one) == []
    assert two.take("a", 200) is None
    two.give("a")
    holds_idle(one, 50)  # it cooperates again
    assert len(places(one)) == 1
    one.begin("sys.exit()")
    assert one.process.wait(30) == 0
    assert places(one) == []


def test_a_refused_shutdown_leaves_the_cooperation(workers: list[Worker]) -> None:
    one, two, _ = workers
    two.take("shared", 2)
    text = two.do("kept.update(text=glake.share(kept['shared'].ptr)) or kept['text']")
    assert one.do(f"kept.update(opened=glake.open_shared({text!r}))") is None
    holds_idle(one, 150)
    told = str(one.do("_C.shutdown()"))
    assert "InvalidArgument" in told and "blocks of other processes are open" in told
    assert len(places(one)) == 1
    assert two.take("a", 200) is None  # it gives
    two.give("a")
    assert one.take("a", 200) is None  # and it asks


def test_a_fork_leaves_the_parent_in_its_place(workers: list[Worker]) -> None:
    one, two, _ = workers
    holds_idle(one, 200)
    assert one.do("kept.update(pid=__import__('os').fork()) or "
                  "(kept['pid'] == 0 and __import__('time').sleep(60))") is False  # fmt: skip
    try:
        assert len(places(one)) == 1
        assert two.take("a", 150) is None
        assert one.reserved() <= 106
    finally:
        os.kill(int(str(one.do("kept['pid']"))), signal.SIGKILL)
