"""What dry runs do without a CUDA build: machines, commands, reports, the search, pages."""

import errno
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from glake import cli, outside
from glake.dryrun import child, gpus, html, run, search, stdin
from glake.dryrun import launch as launching
from glake.dryrun.cli import show
from glake.dryrun.result import DryRun, Refusal, verdict
from glake.errors import DryRunError

GIB = 1 << 30
MIB = 1 << 20


def made(allocator="native", **given):
    """A run that fitted 80 GiB."""
    figures = {
        "capacity_bytes": 80 * GIB,
        "peak_allocated_bytes": 50 * GIB,
        "peak_reserved_bytes": 60 * GIB,
        "outside_bytes": GIB,
        "driver_calls": 1234,
        "driver_us": 10.5,
        "steps": 3,
        "oom": None,
        "host_rss_bytes": GIB // 2,
        "ranks": 1,
        "driver_us_by": {"published": 10.5, "a100-kvcached": 33.0},
        "history": ((55 * GIB, 50 * GIB), (60 * GIB, 50 * GIB)),
        "driver_history": ((1000, 9.5), (1234, 10.5)),
    }
    return DryRun(allocator=allocator, **{**figures, **given})


@pytest.mark.parametrize(
    ("text", "count", "model"),
    [("1", 1, "H100"), ("8", 8, "H100"), ("A100", 1, "A100"), ("4xgb200", 4, "GB200"),
     ("2Xa100-40", 2, "A100-40"), ("L40S", 1, "L40S")],
)  # fmt: skip
def test_machines_are_a_count_a_model_or_both(text, count, model):
    found = gpus.machine(text)
    assert (found.gpus, found.model) == (count, model)
    assert found.memory_bytes == gpus.MODELS[model].memory_bytes


@pytest.mark.parametrize("text", ["", "0", "9", "x", "8x", "8xH1000", "-1", "5xGB200", "H100x8"])
def test_machines_that_are_none_are_named(text):
    with pytest.raises(DryRunError, match=re.escape(repr(text))) as error:
        gpus.machine(text)
    assert "H100" in str(error.value) or "to" in str(error.value)


def test_memory_may_be_given():
    assert gpus.machine("1", "62.6GiB").memory_bytes == int(62.6 * GIB) // (2 * MIB) * (2 * MIB)
    for bad in ("62.6", "62,6GiB", "1MiB", "much"):
        with pytest.raises(DryRunError, match=bad):
            gpus.machine("1", bad)


def test_outside_is_an_estimate_unless_given():
    assert gpus.outside_bytes(None, 1) == outside.CONTEXT_BYTES
    assert gpus.outside_bytes(None, 2) == outside.CONTEXT_BYTES + outside.NCCL_BYTES
    assert gpus.outside_bytes("0", 8) == 0
    assert gpus.outside_bytes("3MiB", 1) == 4 * MIB  # whole granules
    with pytest.raises(DryRunError, match="lots"):
        gpus.outside_bytes("lots", 1)


def test_commands(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert run.command_of(str(script), ["--lr", "1"]) == (sys.executable, str(script), "--lr", "1")
    assert run.command_of("a.module", ["x"], as_module=True) == (
        sys.executable, "-m", "a.module", "x",
    )  # fmt: skip
    assert run.command_of("-m", ["a.module", "x"]) == (sys.executable, "-m", "a.module", "x")
    assert run.command_of("torchrun", ["a.py"])[1:3] == ("-m", "torch.distributed.run")
    launcher = tmp_path / "launch"  # given by its path
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o700)
    assert run.command_of(str(launcher), ["a.py"]) == (str(launcher), "a.py")
    for missing in ("no_such.py", "no-such-launcher"):
        with pytest.raises(DryRunError, match=missing):
            run.command_of(missing, [])


def test_a_cpu_build_says_which_wheel_to_install(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('never run')")
    with pytest.raises(DryRunError, match=r"without CUDA; .*pip install --no-deps torch=="):
        run.dry_run(script)


def test_bad_allocators_are_named(tmp_path):
    with pytest.raises(DryRunError, match="'nativ'; there are native, expandable"):
        run.dry_run(tmp_path / "train.py", allocators=["nativ"])


def test_environments_differ_by_the_allocator_alone(monkeypatch):
    monkeypatch.setattr(launching.libraries, "environment", dict)
    given = {
        "PATH": "/bin",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True",
        "GLAKE_ALLOCATOR": "1",
        "GLAKE_SIM_SEED": "7",
    }
    launch = launching.Launch(("true",), gpus.machine("2"), environment=given)
    found = {name: launching._environment(launch, name, "m") for name in run.ALLOCATORS}
    conf = {name: each["PYTORCH_CUDA_ALLOC_CONF"] for name, each in found.items()}
    assert conf["native"] == "max_split_size_mb:64"
    assert conf["expandable"] == "max_split_size_mb:64,expandable_segments:True"
    assert conf["glake"] == given["PYTORCH_CUDA_ALLOC_CONF"]  # glake honours or names it
    assert "GLAKE_ALLOCATOR" not in found["native"] and "GLAKE_SIM_SEED" not in found["native"]
    assert found["glake"]["GLAKE_POLICY"] == "balanced"
    assert found["compact"]["GLAKE_POLICY"] == "compact"
    assert {each["GLAKE_SIM_DEVICES"] for each in found.values()} == {"2"}


@pytest.mark.parametrize(
    "conf",
    [
        "max_split_size_mb:64, expandable_segments:True",
        "backend:cudaMallocAsync,max_split_size_mb:64",
    ],
)
def test_no_text_of_the_users_turns_one_allocator_into_another(monkeypatch, conf):
    """PyTorch allows blanks, has two names for the variable, and a third allocator."""
    monkeypatch.setattr(launching.libraries, "environment", dict)
    given = {"PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    launch = launching.Launch(("true",), gpus.machine(), environment=given)
    found = {name: launching._environment(launch, name, "m") for name in run.ALLOCATORS}
    assert found["native"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    grown = "max_split_size_mb:64,expandable_segments:True"
    assert found["expandable"]["PYTORCH_CUDA_ALLOC_CONF"] == grown
    assert not any("PYTORCH_ALLOC_CONF" in found[name] for name in ("native", "expandable"))
    assert all(found["glake"][name] == text for name, text in given.items())


def read(handle, least):
    text = b""
    while len(text) < least and (piece := os.read(handle, 1 << 20)):
        text += piece
    return text


def test_each_run_reads_the_whole_input_of_a_file(tmp_path):
    (tmp_path / "words").write_bytes(b"before, what the runs read")
    with (tmp_path / "words").open("rb", buffering=0) as file:
        file.read(8)
        given = stdin.RepeatedInput(file.fileno())
        for _ in range(3):
            with given.once() as handle:
                assert read(handle, 100) == b"what the runs read"


def test_each_run_reads_the_whole_input_of_a_pipe():
    reading, writing = os.pipe()
    given = stdin.RepeatedInput(reading)
    with given.once():  # the pipe says nothing yet, and this run does not wait for it
        pass
    os.write(writing, b"first ")
    with given.once() as handle:
        assert read(handle, 6) == b"first "
    os.write(writing, b"second " * 5000)
    with given.once() as handle:
        assert read(handle, 10).startswith(b"first ")
    with given.once() as handle:
        assert read(handle, 35006) == b"first " + b"second " * 5000
    os.close(writing)
    for _ in range(2):
        with given.once() as handle:
            assert read(handle, 1 << 20) == b"first " + b"second " * 5000
    os.close(reading)


def test_a_run_that_does_not_read_ends():
    reading, writing = os.pipe()
    given = stdin.RepeatedInput(reading)
    os.write(writing, bytes(60_000))
    with given.once() as handle:
        assert os.read(handle, 1) == b"\0"  # so the pipe is empty
    os.write(writing, bytes(60_000))  # with the first ones more than a run's pipe holds
    for _ in range(2):
        with given.once():
            pass
    os.close(writing)
    with given.once() as handle:
        assert read(handle, 1 << 20) == bytes(120_000)
    os.close(reading)


def report(**given):
    """What a process of a job writes."""
    return {
        "rank": 0, "steps": 2, "outside_bytes": 0, "driver_us": 5.0, "host_rss_bytes": 100,
        "peaks": [[0, "allocated_bytes", 10], [0, "reserved_bytes", 20]],
        "driver_calls": {"cuMemMap": 3}, "refused": 0, "refusals": [], "history": [],
        "driver_history": [[2, 4.0], [3, 5.0]], "step_seconds": 0.25,
        "driver_us_by": {"published": 5.0, "a100-kvcached": 9.0},
        "error": "", "files": [], **given,
    }  # fmt: skip


def gathered(code, *reports):
    launch = launching.Launch(("python", "train.py"), gpus.machine())
    launching._check_end(launch, "native", code, list(reports), Path(os.devnull))
    return launching._gathered(launch, "native", code, list(reports), 1.0)


def test_figures_are_the_most_of_any_rank():
    other = report(
        rank=1, steps=3, driver_calls={"cuMemMap": 9, "cuMemCreate": 1}, host_rss_bytes=70,
        driver_history=[[7, 0.5], [10, 0.75]], step_seconds=0.5,
        driver_us_by={"published": 4.0, "a100-kvcached": 11.04},
        peaks=[[1, "allocated_bytes", 15], [1, "reserved_bytes", 16]],
    )  # fmt: skip
    found = gathered(0, report(), other)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (15, 20)
    assert (found.driver_calls, found.steps, found.ranks, found.host_rss_bytes) == (10, 2, 2, 100)
    assert found.driver_history == ((7, 0.5), (10, 0.8))  # of the rank with most calls
    assert found.driver_us_by == {"published": 5.0, "a100-kvcached": 11.0}
    assert found.step_seconds == 0.5
    assert found.oom is None and found.fits


def test_a_process_that_only_looks_at_its_gpu_is_no_rank():
    """torch.compile starts such processes."""
    idle = report(
        steps=0, history=[], peaks=[[0, "allocated_bytes", 0], [0, "reserved_bytes", 0]],
        driver_calls={"cuEventQuery": 99},
    )  # fmt: skip
    found = gathered(0, idle, report())
    assert (found.ranks, found.steps, found.driver_calls) == (1, 2, 3)
    assert gathered(0, idle).ranks == 1  # a job that takes no memory has a rank too
    refused = idle | {"rank": 1, "refused": 1, "error": "OutOfMemoryError: CUDA out of memory"}
    found = gathered(1, report(), refused)  # at its first request
    assert (found.ranks, found.steps) == (2, 0) and found.oom.rank == 1


def test_out_of_memory_is_a_result_and_names_the_first_rank():
    refused = {"device": 1, "requested_bytes": 64, "step": 1, "holders": [["a.py:3 in f", 9, 1]]}
    first = report(
        rank=1, steps=1, refused=1, refusals=[refused], error="OutOfMemoryError: CUDA out of memory"
    )
    found = gathered(1, report(), first)
    assert found.oom == Refusal(
        1, 1, 64, 1, "OutOfMemoryError: CUDA out of memory", (("a.py:3 in f", 9, 1),)
    )
    assert not found.fits and found.refusals == 1


@pytest.mark.parametrize(
    "error",
    ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul( lt)`",
     "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
     "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
     "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
     "_LinAlgError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"],
)  # fmt: skip
def test_a_library_that_finds_no_memory_is_out_of_memory(error):
    earlier = {"device": 0, "requested_bytes": 64, "step": 1, "holders": [["a.py:3 in f", 9, 1]]}
    found = gathered(1, report(error=error, refused=1, refusals=[earlier]))
    assert found.oom == Refusal(0, 0, 0, 2, error)  # not the request that the job lived on from
    own = {"device": 1, "requested_bytes": 0, "step": 2, "holders": [["a.py:4 in f", 7, 1]]}
    found = gathered(1, report(error=error, refused=2, refusals=[earlier, own]))
    assert found.oom == Refusal(0, 1, 0, 2, error, (("a.py:4 in f", 7, 1),))


def test_a_refusal_that_the_job_lived_on_from_is_only_counted():
    found = gathered(0, report(refused=2, refusals=[]))
    assert found.fits and found.refusals == 2


def test_other_failures_are_errors():
    with pytest.raises(DryRunError, match="exit code 3"):
        gathered(3, report())
    with pytest.raises(DryRunError, match="signal 9"):
        gathered(-9, report())
    with pytest.raises(DryRunError, match="exit code 1"):  # the job went on after the refusal
        gathered(1, report(refused=1, error="ValueError: of its own"))
    for status in ("CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_EXECUTION_FAILED"):
        with pytest.raises(DryRunError, match="exit code 1"):
            gathered(1, report(error=f"RuntimeError: CUDA error: {status} when calling `f()`"))
    with pytest.raises(DryRunError, match="no process of the job used a GPU"):
        gathered(0)


@pytest.mark.parametrize(
    ("extra", "most_runs"),
    [(0, 11), (3 * GIB, 11), (-4 * GIB, 10), (-10 * GIB, 1), (-10 * GIB + 300 * MIB, 4)],
)
def test_the_search_finds_the_smallest_gpu(monkeypatch, extra, most_runs):
    least = 61 * GIB + extra  # as reserved bytes say, more, less, or close to live bytes
    runs = []

    def once(launch, allocator):
        runs.append(launch.machine.memory_bytes)
        fits = launch.machine.memory_bytes >= least
        oom = None if fits else Refusal(0, 0, 1, 0, "out of memory")
        return made(allocator, capacity_bytes=launch.machine.memory_bytes, oom=oom)

    monkeypatch.setattr(search, "run_once", once)
    launch = launching.Launch(("python",), gpus.machine())
    for first, before in ((made(), 0), (made(oom=Refusal(0, 0, 1, 0, "out of memory")), 1)):
        runs.clear()
        found = search.smallest_capacity(launch, first, lambda text: None)
        assert least <= found.smallest_capacity_bytes <= least * (1 + 1.5 * search.PRECISION)
        assert len(runs) <= most_runs + before


def test_json_has_the_documented_names():
    row = made(oom=Refusal(0, 0, 7, 2, "text", (("f", 5, 1),))).to_json()
    documented = (
        "allocator, capacity_bytes, peak_allocated_bytes, peak_reserved_bytes, outside_bytes, "
        "driver_calls, driver_us, steps, oom, host_rss_bytes, ranks"
    )
    assert list(row)[:11] == documented.split(", ")
    assert row["oom"]["holders"] == [{"where": "f", "bytes": 5, "blocks": 1}]
    assert json.loads(json.dumps(row)) == row


def test_the_verdict_says_who_runs():
    good, bad = made(), made("glake", oom=Refusal(0, 0, 1, 0, ""))
    assert verdict([good]) == "The job runs in 80.00 GiB with native."
    assert verdict([good, bad]).endswith("with native, and out of memory with glake.")
    assert verdict([bad, bad]).startswith("The job runs out of memory in 80.00 GiB")


def test_runs_of_different_lengths_are_not_compared_in_silence():
    def shown(*runs):
        console = Console(file=io.StringIO(), width=200)
        show(list(runs), console)
        return console.file.getvalue()

    assert "different numbers of steps" in shown(made(), made("glake", steps=0))
    refused = made("glake", steps=1, oom=Refusal(0, 0, 7, 1, "text"))
    assert "different numbers" not in shown(made(), made("glake"), refused)


def test_refusals_that_the_job_lived_on_from_are_shown():
    def shown(**given):
        console = Console(file=io.StringIO(), width=200)
        show([made(**given)], console)
        return console.file.getvalue()

    assert "native: 1 request was refused, and the script went on" in shown(refusals=1)
    assert "native: 2 requests were refused, and the script went on" in shown(refusals=2)
    assert "went on" not in shown()
    assert "went on" not in shown(refusals=1, oom=Refusal(0, 0, 7, 1, "text"))


def test_the_report_escapes_and_draws():
    refused = Refusal(0, 1, 7 * MIB, 2, "<script>alert(1)</script>", (("<b>x.py</b>", 5, 1),))
    runs = [made(), made("glake", oom=refused, smallest_capacity_bytes=70 * GIB)]
    text = html.report(runs, "train.py <evil>")
    assert "<script" not in text and "<evil>" not in text and "<b>x" not in text
    assert text.count("<rect") == 6 and text.count("<polyline") == 2
    assert "The axis begins at" in text and "70.00 GiB" in text
    assert not re.search(r"NaN|inf\b", text)


def test_a_job_that_takes_no_memory_has_a_report():
    nothing = {"peak_allocated_bytes": 0, "peak_reserved_bytes": 0, "outside_bytes": 0}
    page = html.report([made("native", **nothing, history=())], "idle.py")
    assert "0 B" in page and "nan" not in page


def test_lines_of_the_script_are_named_from_where_it_began(monkeypatch, tmp_path):
    began = Path.cwd()
    frame = {"filename": str(began / "own" / "train.py"), "line": 3, "name": "f"}
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert child._where([frame]) == "own/train.py:3 in f"
    assert child._where([frame | {"filename": "train.py"}]) == "train.py:3 in f"


def test_one_step_is_no_line():
    assert "<polyline" not in html.report([made(history=((1, 1),))], "x")


def test_the_command_says_what_is_wrong(tmp_path):
    result = CliRunner().invoke(cli.main, ["dry-run", str(tmp_path / "none.py")])
    assert result.exit_code != 0 and "torch" in result.output
    result = CliRunner().invoke(
        cli.main, ["dry-run", "--html", str(tmp_path / "no" / "r.html"), "x.py"]
    )
    assert result.exit_code != 0 and "no such directory" in result.output


def test_a_report_that_cannot_be_written_loses_no_result(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "dry_run", lambda *args, **options: [made("native")])
    folder, report = tmp_path / "folder", tmp_path / "report.html"
    folder.mkdir()
    with pytest.raises(DryRunError, match="cannot write a report to .*folder: Is a directory"):
        html.require(str(folder))
    html.require(str(report))
    assert not report.exists()

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    result = CliRunner().invoke(cli.main, ["dry-run", "--html", str(report), "train.py"])
    assert result.exit_code == 1 and "60.00 GiB" in result.stdout
    assert f"cannot write the report to {report}: No space left on device" in result.stderr


def test_a_mistyped_option_is_named():
    with pytest.raises(DryRunError, match="no such option: --frobnicate"):
        run.command_of("--frobnicate", ("train.py",))


def test_where_the_part_outside_is_from():
    assert outside.source(outside.estimate(2), 2) == outside.SOURCE
    assert outside.source(0, 2) == "as it was given"
    # Ranks that no launcher has started do not say how many they are.
    assert "nothing for NCCL" in outside.source(outside.estimate(1), 2)


def test_what_cannot_be_is_told_before_the_job_runs(monkeypatch, tmp_path):
    def started(*job):
        raise AssertionError("the job was run")

    monkeypatch.setattr(run, "require_cuda_build", lambda: None)
    monkeypatch.setattr(run, "run_once", started)
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(DryRunError, match=r"would take 616.0 MiB of each GPU, which has 100.0 MiB"):
        run.dry_run(script, memory="100MiB")
    with pytest.raises(DryRunError, match="no folder .*/train.py/kept for what is kept"):
        run.dry_run(script, keep=script / "kept")
