"""On one rank the loop learns, goes on exactly where it stopped, and says what is wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from glake.errors import (
    CheckpointMismatch,
    DataTooShort,
    Diverged,
    InvalidOption,
    NotExported,
    PackageMissing,
    RankLost,
    UnknownOption,
)
from glake.trainer import log, loop, ranks
from glake.trainer.__main__ import configured, main
from glake.trainer.checkpoint import disk, memory
from glake.trainer.goodput import goodput, last_of_each_step, records
from glake.trainer.models import huggingface, sizes
from glake.trainer.models.lora import LoRA, with_lora

TINY = {
    "model.layers": "1",
    "model.dim": "32",
    "model.block.attention.heads": "2",
    "model.block.feed_forward.hidden": "64",
    "data.length": "16",
    "sequences": "4",
    "log.progress": "false",
    "optimizer.lr": "0.003",
}


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm."""
    root = tmp_path / "shm"
    root.mkdir()
    monkeypatch.setattr(memory, "ROOT", root)
    return root


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return path


def tiny(text: Path, folder: Path | None = None, steps: int = 8, **changes: str) -> Any:
    given = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    where = None if folder is None else str(folder)
    pairs = tuple(f"{name}={value}" for name, value in given.items())
    return configured("gpt-tiny", str(text), steps, where, pairs)


def losses(folder: Path) -> dict[int, float]:
    counted = last_of_each_step(records(folder / "log.jsonl"))
    return {step: each["loss"] for step, each in counted.items()}


def test_it_learns_evaluates_and_logs(text: Path, tmp_path: Path, shared: Path) -> None:
    changes = {"evaluation__every": "20", "log__peak_flops": "1e12"}
    config = tiny(text, tmp_path / "run", 40, evaluation__steps="2", **changes)
    outcome = loop.train(config)
    found = losses(tmp_path / "run")
    assert sorted(found) == list(range(1, 41))
    assert found[1] > 5 > 3.6 > found[40] == outcome.loss
    assert outcome.evaluation is not None and outcome.evaluation < 3.8
    last = records(tmp_path / "run" / "log.jsonl")[-2]
    assert last["evaluation"] == outcome.evaluation
    assert last["tokens"] == 40 * 4 * 16 and 0 < last["mfu"] < 1 and last["tokens_per_s"] > 0
    assert list(shared.iterdir()) == []  # a finished run leaves no memory


@pytest.mark.parametrize("kind", ["base:AdamW", "agd:AGD", "wsam:WSAM"])
@pytest.mark.parametrize("source", ["memory", "disk"])
def test_a_run_that_was_cut_off_ends_in_the_same_losses_to_the_bit(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, source: str
) -> None:
    part = '{{"class" = "glake.trainer.optimizers.{}", {}}}'
    rate = "lr = 0.003"
    if kind == "wsam:WSAM":
        rate = "base = " + part.format("base:AdamW", rate)
    changes = {
        "optimizer": part.format(kind, rate),
        "checkpoint__every": "2",
        "checkpoint__memory": "true" if source == "memory" else "false",
        "accumulation": "2",
    }
    del TINY["optimizer.lr"]
    try:
        whole = tiny(text, tmp_path / "whole", **changes)
        cut = tiny(text, tmp_path / "cut", **changes)
    finally:
        TINY["optimizer.lr"] = "0.003"
    loop.train(whole)
    step = loop._Run._step

    def killed(self: Any) -> Any:
        if self.step == 5:
            self.checkpoint.settle()
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(loop._Run, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        loop.train(cut)
    monkeypatch.undo()
    monkeypatch.setattr(memory, "ROOT", tmp_path / "shm")
    resumed = loop.train(cut).resumed
    assert resumed is not None
    assert (resumed.source, resumed.step) == ("memory", 5) if source == "memory" else ("disk", 4)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.parametrize("numbers", [False, True])
def test_a_dry_run_leaves_the_users_states_alone(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    numbers: bool,
) -> None:
    folder, export = tmp_path / "run", tmp_path / "out"
    loop.train(tiny(text, folder, 4))
    before = {path: path.stat().st_mtime_ns for path in folder.glob("step-*/*")}
    log = (folder / "log.jsonl").read_bytes()
    own = tmp_path / "dry"
    own.mkdir()
    request = {"folder": str(own), "numbers": numbers}
    monkeypatch.setenv("_GLAKE_DRY_RUN", json.dumps(request))
    for _ in range(2):  # once for each allocator
        config = tiny(text, folder, 6)
        config.set("export", str(export))
        outcome = loop.train(config)
        assert outcome.resumed is None and outcome.steps == 6
    told = "no checkpoint, and exports nothing: checkpoint.folder and export left as they are"
    assert told in capsys.readouterr().err
    assert config.checkpoint.folder == str(folder) and not export.exists()  # left as given
    assert {path: path.stat().st_mtime_ns for path in folder.glob("step-*/*")} == before
    assert ((folder / "log.jsonl").read_bytes() == log) == (not numbers)  # real losses are logged


def test_steps_that_are_done_again_are_named(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    loop.train(tiny(text, folder, 4, checkpoint__every="2", checkpoint__keep="9"))
    assert "done again" not in capsys.readouterr().err
    shutil.rmtree(folder / "step-00000004")
    loop.train(tiny(text, folder, 5))
    told = "the log has 4 steps of this run, and no state after step 2 is left: steps 3 to 4 are"
    assert told in capsys.readouterr().err


def test_accumulation_gives_the_same_gradients(text: Path, tmp_path: Path) -> None:
    loop.train(tiny(text, tmp_path / "one"))
    loop.train(tiny(text, tmp_path / "four", accumulation="4"))
    four = losses(tmp_path / "four")
    assert losses(tmp_path / "one") == pytest.approx(four, rel=1e-5)


def test_an_interrupted_run_says_where_the_same_command_goes_on(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = loop._Run._passes

    def until_the_fourth(self: Any, batches: Any) -> Any:
        if self.step == 3:
            raise KeyboardInterrupt
        return passes(self, batches)

    with monkeypatch.context() as patched:
        patched.setattr(loop._Run, "_passes", until_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            loop.train(tiny(text, tmp_path / "run", 5))
    assert "interrupted: the same command goes on after step 3, from" in capsys.readouterr().err
    again = loop.train(tiny(text, tmp_path / "run", 5))
    assert again.resumed is not None and again.resumed.step == 3
    assert again.loss == loop.train(tiny(text, tmp_path / "whole", 5)).loss


@pytest.mark.parametrize("at", ["_passes", "__init__"])
def test_the_command_says_once_that_it_was_interrupted(
    text: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Run, at, interrupted)
    sets = [f"--set={name}={value}" for name, value in TINY.items()]
    done = CliRunner().invoke(main, ["--config=gpt-tiny", f"--data={text}", *sets])
    assert done.exit_code == 130
    assert done.output.count("trainer: interrupted") == 1, done.output


def test_another_models_checkpoint_is_refused(text: Path, tmp_path: Path) -> None:
    loop.train(tiny(text, tmp_path / "run", 2))
    agd = '{"class" = "glake.trainer.optimizers.agd:AGD"}'
    layer_norm = '{"class" = "glake.trainer.models.leaf:RMSNorm"}'
    for option, value, said in (
        ("model__dim", "48", "model.dim is 32 there and 48 here"),
        ("model__block__attention__heads", "4", "attention.heads is 2 there and 4 here"),
        ("model__block__attention__rotary", "{theta = 5e5}", "theta is None there and 500000.0"),
        ("model__norm", layer_norm, "norm.class is .*LayerNorm there and .*RMSNorm here"),
        ("model__norm__dtype", "bfloat16", "norm.dtype is None there and bfloat16 here"),
        ("model__norm__trainable", "false", "norm.weight is .* there and .*, frozen here"),
    ):
        with pytest.raises(CheckpointMismatch, match=f"{said}.*another checkpoint.folder"):
            loop.train(tiny(text, tmp_path / "run", 4, **{option: value}))
    del TINY["optimizer.lr"]
    try:
        other = tiny(text, tmp_path / "run", 4, optimizer=agd)
    finally:
        TINY["optimizer.lr"] = "0.003"
    with pytest.raises(CheckpointMismatch, match="class is .*AdamW there and .*AGD here"):
        loop.train(other)
    outcome = loop.train(tiny(text, tmp_path / "run", 4))  # the checkpoint is as it was
    assert outcome.resumed is not None and outcome.resumed.step == 2


def test_a_checkpoint_without_a_count_of_tokens_is_refused(text: Path, tmp_path: Path) -> None:
    loop.train(tiny(text, tmp_path / "run", 2))
    (marker,) = (tmp_path / "run").glob(f"step-*/{disk.MARKER}")
    told = json.loads(marker.read_text())
    marker.write_text(json.dumps(told | {"notes": {"step": 2}}))
    with pytest.raises(CheckpointMismatch, match="step 2 of disk .*tokens.* {'step': 2}"):
        loop.train(tiny(text, tmp_path / "run", 4))


def test_what_may_change_from_run_to_run_does(text: Path, tmp_path: Path) -> None:
    loop.train(tiny(text, tmp_path / "run", 2))
    free = {"optimizer__lr": "0.1", "model__loss_rows": "8", "model__embedding__std": "0.1"}
    assert loop.train(tiny(text, tmp_path / "run", 3, **free)).resumed is not None


def test_wrong_options_are_refused_at_once(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'heads'"):
        tiny(text, model__block__attention__head="3")
    with pytest.raises(UnknownOption, match="no model 'gpt-smal'.*gpt-small"):
        configured("gpt-smal", None, None, None, ())
    with pytest.raises(InvalidOption, match="sequences: 0 is out of range: take 1"):
        loop.train(tiny(text, sequences="0"))
    with pytest.raises(InvalidOption, match=r"tokens go up to 256: --set model.vocabulary=256"):
        loop.train(tiny(text, model__vocabulary="128"))
    for option in ("snapshot", "trace"):
        with pytest.raises(InvalidOption, match=f"log.{option}: .*GLAKE_ALLOCATOR=1"):
            loop.train(tiny(text, tmp_path / "run", **{f"log__{option}": "true"}))
    with pytest.raises(InvalidOption, match="File exists; name a folder that can be written to"):
        loop.train(tiny(text, text))
    with pytest.raises(InvalidOption, match="sharding.prefetch: -1 is out of range"):
        loop.train(tiny(text, sharding__prefetch="-1"))
    for option in ({"activation_offload": "true"}, {"offload": "optimizer"}):
        wrong = {f"sharding__{name}": value for name, value in option.items()}
        with pytest.raises(InvalidOption, match='fsdp = "torch" keeps neither activations'):
            loop.train(tiny(text, sharding__fsdp="torch", **wrong))
    with pytest.raises(InvalidOption, match="seed: -1 is out of range: take 0"):
        loop.train(tiny(text, seed="-1"))
    with pytest.raises(InvalidOption, match="feed_forward.hidden: -4 is out of range"):
        loop.train(tiny(text, model__block__feed_forward__hidden="-4"))
    with pytest.raises(InvalidOption, match="optimizer.betas: 1: 1.5 is out of range"):
        loop.train(tiny(text, optimizer__betas="[0.9, 1.5]"))
    with pytest.raises(InvalidOption, match="clip: -1.0 is out of range: take 0"):
        loop.train(tiny(text, clip="-1.0"))
    with pytest.raises(InvalidOption, match="'torch' is for comparison, and keeps no checkpoints"):
        loop.train(tiny(text, tmp_path / "run", sharding__fsdp="torch"))
    with pytest.raises(InvalidOption, match="log.profile needs a folder"):
        loop.train(tiny(text, log__profile="1"))


def test_a_loss_that_is_no_number_ends_the_run(text: Path) -> None:
    with pytest.raises(Diverged, match=r"the loss of step \d+ is (nan|inf)"):
        loop.train(tiny(text, None, 20, optimizer__lr="1e18", clip="0.0"))


def test_a_diverged_state_is_not_saved(text: Path, tmp_path: Path) -> None:
    diverging = {"optimizer__lr": "1e18", "clip": "0.0", "checkpoint__every": "1"}
    with pytest.raises(Diverged) as error:
        loop.train(tiny(text, tmp_path / "run", 20, log__every="20", **diverging))
    step = int(str(error.value).split("step ")[1].split()[0])
    saved = [int(each.parent.name[5:]) for each in (tmp_path / "run").glob("step-*/whole.json")]
    assert max(saved, default=0) < step
    again = loop.train(tiny(text, tmp_path / "run", step - 1))
    assert again.resumed is not None and again.resumed.step == step - 1


def test_gradients_that_are_no_number_are_not_stepped_into_a_saved_state(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is finite where its gradient is not, such as at the root of zero."""
    passes = loop._Run._passes

    def infinite(self: Any, batches: Any) -> Any:
        total = passes(self, batches)
        if self.step == 5:
            next(self.sharded.named_parameters())[1].grad.fill_(float("inf"))
        return total

    monkeypatch.setattr(loop._Run, "_passes", infinite)
    with pytest.raises(Diverged, match="the gradients' norm of step 6 is inf: lower"):
        loop.train(tiny(text, tmp_path / "run", checkpoint__every="1"))
    monkeypatch.setattr(loop._Run, "_passes", passes)
    outcome = loop.train(tiny(text, tmp_path / "run"))
    assert outcome.resumed is not None and outcome.resumed.step == 5
    assert math.isfinite(outcome.loss)


def test_a_finished_command_run_again_keeps_its_checkpoint_and_its_loss(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = loop.train(tiny(text, tmp_path / "run", 5))
    (marker,) = (tmp_path / "run").glob("step-*/whole.json")
    before = marker.stat()
    again = loop.train(tiny(text, tmp_path / "run", 5))
    assert again.loss == first.loss and again.resumed is not None
    after = marker.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    capsys.readouterr()
    loop.train(tiny(text, tmp_path / "run", 6, seed="3", data__length="8"))
    said = capsys.readouterr().err
    # The rates of a schedule depend on the number of steps.
    other = "data.length was 16, and is 8; steps was 5, and is 6; seed was 0, and is 3"
    assert f"made otherwise: {other}" in said


@pytest.mark.parametrize("option", ["checkpoint__folder", "log__folder", "export"])
def test_a_run_does_not_train_on_what_it_writes(text: Path, tmp_path: Path, option: str) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "text").write_text(text.read_text())
    with pytest.raises(InvalidOption, match=f"{option.replace('__', '.')} = .* lies in data.path"):
        loop.train(tiny(folder, None, 2, **{option: str(folder / "more" / "run")}))
    loop.train(tiny(folder / "text", folder / "run", 2))  # nothing lies in a file


def test_nothing_is_dropped_in_an_evaluation(text: Path) -> None:
    config = with_lora(tiny(text, steps=4, evaluation__every="4", evaluation__steps="2"), rank=4)
    config.visit(LoRA.Config, lambda lora: lora.set("dropout", 0.9))
    with ranks.joined(60) as here, contextlib.ExitStack() as ends:
        run = loop._Run(config, here, ends)
        found = run.train().evaluation
        assert run.evaluate() == run.evaluate() == found
        assert run.sharded.module.training  # and the steps after it drop again


def test_evaluations_come_when_they_are_asked_for(text: Path, tmp_path: Path) -> None:
    changes = {"evaluation__every": "3", "evaluation__steps": "1", "log__every": "4"}
    loop.train(tiny(text, tmp_path / "run", 10, **changes))
    found = last_of_each_step(records(tmp_path / "run" / "log.jsonl"))
    assert sorted(found) == [3, 4, 6, 8, 9, 10]
    assert [step for step, each in found.items() if "evaluation" in each] == [3, 6, 9, 10]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__evaluation": "0.0005"}, "text kept for evaluation .*do not make one sequence"),
        ({"data__separator": "x", "data__evaluation": "0.01"}, "no token that is predicted"),
    ],
)
def test_text_that_is_too_little_to_evaluate_on_is_refused_before_a_step(
    text: Path, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    if "data__separator" in changes:
        text.write_text(text.read_text() + "x" * 1000)  # documents of one byte
    with pytest.raises(DataTooShort, match=said):
        loop.train(tiny(text, tmp_path / "run", evaluation__every="8", **changes))
    assert losses(tmp_path / "run") == {}


def test_a_log_that_is_removed_during_the_run_costs_its_goodput(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop._Run._step

    def removed(self: Any) -> Any:
        (tmp_path / "run" / "log.jsonl").unlink(missing_ok=True)
        return step(self)

    monkeypatch.setattr(loop._Run, "_step", removed)
    assert loop.train(tiny(text, tmp_path / "run", 2)).steps == 2


def test_ranks_end_when_torchrun_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ranks.Ranks(0, 1, None, None, None, os.getppid())
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    here.check()
    orphan = ranks.Ranks(0, 1, None, None, None, 1 << 22)
    with pytest.raises(RankLost, match="torchrun was killed.*the same command goes on"):
        orphan.check()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    orphan.check()


def test_a_full_disk_costs_the_log_and_not_the_run(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 (the log closes it)
    monkeypatch.setattr(log, "_continued", lambda path: full)
    done = loop.train(tiny(text, None, 3, log__folder=str(tmp_path)))
    assert done.steps == 3
    said = capsys.readouterr().err
    assert said.count("No space left on device. The run goes on without its log") == 1


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_tensorboard_and_not_the_run(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils import tensorboard

    monkeypatch.setattr(tensorboard.SummaryWriter, "add_scalar", full_disk)
    board = {"log__tensorboard": "true"}
    assert loop.train(tiny(text, tmp_path / "run", 3, **board)).steps == 3
    monkeypatch.undo()
    monkeypatch.setattr(memory, "ROOT", tmp_path / "shm")
    monkeypatch.setattr(tensorboard.SummaryWriter, "close", full_disk)  # it writes what is left
    assert loop.train(tiny(text, None, 3, log__folder=str(tmp_path / "log"), **board)).steps == 3
    said = capsys.readouterr().err
    lost = "tensorboard: No space left on device. The run goes on without TensorBoard"
    assert said.count(lost) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tensorboard").touch()
    with pytest.raises(InvalidOption, match="log.tensorboard writes to .*other/tensorboard: "):
        loop.train(tiny(text, None, 3, log__folder=str(tmp_path / "other"), **board))


def test_a_profile_that_could_not_be_written_is_not_announced(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(self: Any, path: str) -> None:  # as torch's exporter leaves it on a full disk
        Path(f"{path}.tmp").write_text('{"traceEvents": [')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", half)
    folder = tmp_path / "run"
    assert loop.train(tiny(text, folder, 3, log__profile="1")).steps == 3
    said = capsys.readouterr().err
    assert f"{folder}/profile-0.json: it could not be written whole" in said
    assert "perfetto" not in said and list(folder.glob("profile*")) == []


def test_a_full_disk_costs_the_snapshot_and_not_the_run(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(path: Path) -> None:
        path.write_bytes(b"half")
        full_disk()

    monkeypatch.setattr(log, "_recorded", lambda device: half)
    folder = tmp_path / "run"
    assert loop.train(tiny(text, folder, 3, log__snapshot="true")).steps == 3
    said = capsys.readouterr().err
    assert f"{folder}/memory-0.pickle: No space left on device. There is no snapshot" in said
    assert list(folder.glob("memory*")) == []
    assert records(folder / "log.jsonl")[-1]["event"] == "end"


def test_the_profile_and_tensorboard(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.train(tiny(text, tmp_path / "run", 5, log__profile="1"))
    profile = json.loads((tmp_path / "run" / "profile-0.json").read_text())
    assert any("backward" in str(each.get("name")) for each in profile["traceEvents"])
    loop.train(tiny(text, tmp_path / "board", 3, log__tensorboard="true"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board" / "tensorboard")).Reload()
    written = {each.step: each.value for each in board.Scalars("loss")}
    assert written == pytest.approx(losses(tmp_path / "board")) and len(written) == 3
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not there
    with pytest.raises(PackageMissing, match=r'tensorboard.*pip install "glake\[trainer\]"'):
        loop.train(tiny(text, tmp_path / "other", log__tensorboard="true"))


def test_the_command(text: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(main, ["--config", "gpt-tiny", "--set", "model.layers=2", "--print-config"])
    assert shown.exit_code == 0, shown.output
    (tmp_path / "experiment.toml").write_text(shown.output)
    again = run(main, ["--config", str(tmp_path / "experiment.toml"), "--print-config"])
    assert again.output == shown.output and "layers = 2" in shown.output
    listed = run(main, ["--list"]).output
    assert "llama-3-8b" in listed and "8,030" in listed
    (tmp_path / "folder.toml").mkdir()
    for arguments, words in (
        (["--config", "gpt-tiny", "--data", str(tmp_path / "gone")], "DataMissing: there is no"),
        (["--config", str(tmp_path / "gone.toml")], "gone.toml: No such file"),
        (["--config", "gpt-tiny", "--set", "steps"], "write it as PATH=VALUE"),
        (["--config", "gpt-tiny", "--set", " =3"], "write it as PATH=VALUE"),
        ([], "--config says what to train"),
        (["--config", "mine.yaml"], "--config mine.yaml: an experiment is a TOML file"),
        (["--config", "a" * 5000], "aaa: File name too long"),
        (["--config", str(tmp_path / "folder.toml")], "folder.toml: Is a directory"),
    ):
        done = run(main, arguments)
        assert done.exit_code == 1 and words in done.output + done.stderr


def test_a_checkpoint_of_transformers_is_trained_and_written(text: Path, tmp_path: Path) -> None:
    first, second, run = tmp_path / "first", tmp_path / "second", CliRunner().invoke
    model = sizes.llama(2, 32, 2, 48, vocabulary=256).build()
    huggingface.write(first, model.config, model.named_parameters())
    options = ["--data", str(text), "--set", "data.length=16", "--set", "log.progress=false"]
    command = ["--config", str(first), "--folder", str(tmp_path / "run"), *options]
    done = run(main, [*command, "--steps", "3", "--export", str(second)])
    assert done.exit_code == 0 and f"begins with the weights in {first}" in done.stderr
    before, after = huggingface.load(first), dict(huggingface.load(second).named_parameters())
    assert any(not torch.equal(own, after[name]) for name, own in before.named_parameters())
    again = run(main, [*command, "--steps", "4"])  # from its own checkpoint, not from the weights
    assert "goes on after step 3" in again.stderr and "begins with" not in again.stderr
    # A step that changes nothing writes what was read.
    idle = ["--set", "optimizer.lr=0.0", "--steps", "1", "--export", str(tmp_path / "third")]
    assert run(main, ["--config", str(first), *options, *idle]).exit_code == 0
    same = dict(huggingface.load(tmp_path / "third").named_parameters())
    assert all(torch.equal(own, same[name]) for name, own in before.named_parameters())
    for model, folder, said in (
        ("gpt-tiny", second, "no form in transformers"),
        (str(first), text, "NotExported: no model can be written to .*: Not a directory"),
    ):
        refused = run(main, ["--config", model, *options, "--export", str(folder)])
        assert refused.exit_code == 1 and re.search(said, refused.stderr)
        assert "step" not in refused.stderr  # refused before it trains


def test_in_the_emulation_the_losses_are_the_same_to_the_bit(text: Path, tmp_path: Path) -> None:
    """State lies in simulated GPU memory, and checkpoints go through the transfer engine."""
    arguments = [f"--set={name}={value}" for name, value in TINY.items()]
    arguments += ["--config=gpt-tiny", f"--data={text}", "--steps=5", "--set=checkpoint.every=2"]
    emulation = {"GLAKE_ALLOCATOR": "1", "GLAKE_DRIVER": "sim", "GLAKE_STRICT": "1"}
    for name, variables in (("stock", {}), ("glake", emulation)):
        command = [sys.executable, "-m", "glake.trainer", *arguments]
        command += [
            f"--folder={tmp_path / name}",
            f"--set=log.snapshot={str(name != 'stock').lower()}",
        ]
        done = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "glake") == losses(tmp_path / "stock")
    last = records(tmp_path / "glake" / "log.jsonl")[-2]
    assert (
        last["allocator"] == "emulation" and last["reserved_bytes"] >= last["allocated_bytes"] > 0
    )
    assert (tmp_path / "glake" / "memory-0.pickle").stat().st_size > 1000
    resumed = loop.train(tiny(text, tmp_path / "glake", 5)).resumed
    assert resumed is not None and resumed.step == 5  # stock torch reads it


def test_a_failed_collective_is_a_lost_rank() -> None:
    with pytest.raises(RankLost, match="max-restarts"), ranks.lost_ranks():
        raise RuntimeError("[pair.cc:537] Read error [127.0.0.1]:30353: Connection reset by peer")
    with pytest.raises(RuntimeError, match="shapes"), ranks.lost_ranks():
        raise RuntimeError("shapes do not match")


def test_goodput_of_a_log(tmp_path: Path) -> None:
    def step(number: int, time: float, seconds: float = 1.0, stall: float = 0.0) -> dict[str, Any]:
        found = {"event": "step", "step": number, "seconds": seconds}
        return found | {"stall_s": stall, "time": time}

    def start(process: float, joined: float, time: float) -> dict[str, Any]:
        return {"event": "start", "process": process, "joined": joined, "time": time}

    lines = [
        start(0, 5, 6),
        *(step(n, 6 + n, stall=0.1 if n == 2 else 0.0) for n in range(1, 5)),
        start(13, 18, 18.5),  # killed between 10 and 13, which loses about one step
        step(4, 20, seconds=1.5),
        *(step(n, 16 + n) for n in range(5, 11)),
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + '{"event": "st')
    found = goodput(records(path))
    assert found.useful == pytest.approx(9.9) and found.stalled == pytest.approx(0.1)
    assert found.repeated == pytest.approx(1) and found.broken == pytest.approx(1)
    assert found.restoring == pytest.approx(0.5 + 0.5)  # the rest of the slow first step
    assert found.restarting == pytest.approx(5 + 1 + 5 + 2) and found.restarts == 1
    assert found.share == pytest.approx(9.9 / 13)
    assert "goodput 76.2%" in str(found)


def test_goodput_is_of_the_last_run() -> None:
    def start(run: str, time: float) -> dict[str, Any]:
        return {"event": "start", "run": run, "process": time, "joined": time, "time": time}

    def steps(first: float) -> list[dict[str, Any]]:
        fields = {"event": "step", "seconds": 1.0, "stall_s": 0.0}
        return [fields | {"step": at, "time": first + at} for at in range(1, 4)]

    last = [start("b", 9), *steps(9)]
    found = goodput([start("a", 0), *steps(0), *last])
    assert found.useful == pytest.approx(3) and found.restarts == 0 and found.share == 1
    again = [{"event": "end", "time": 12.0}, start("b", 90) | {"time": 95.0}]
    assert goodput([*last, *again]).share == 1  # it was not killed


def test_runs_without_a_checkpoint_folder_are_told_apart() -> None:
    """They have no name, and a later one goes on from nothing of an earlier one."""

    def run(job: str, restart: int, first: float) -> list[dict[str, Any]]:
        at = {"process": first, "joined": first, "time": first}
        start = {"event": "start", "run": "", "job": job, "restart": restart, **at}
        fields = {"event": "step", "seconds": 1.0, "stall_s": 0.0}
        return [start, *(fields | {"step": at, "time": first + at} for at in range(1, 4))]

    alone = goodput(run("a", 0, 9))
    assert goodput([*run("a", 0, 0), *run("a", 0, 9)]).as_dict() == alone.as_dict()
    assert goodput([*run("a", 0, 0), *run("b", 1, 9)]).repeated == 0  # of another torchrun
    again = goodput([*run("a", 0, 0), *run("a", 1, 9)])  # this torchrun has started it again
    assert again.repeated == 3 and again.restarts == 1


@pytest.mark.parametrize(
    ("starts", "restarts"),
    [
        ([0], 0),
        ([0, 1, 2], 2),
        ([0, 4], 4),  # three were killed before they had joined
        ([2], 2),  # two before anything was in the log
        ([0, 1, 0, 2], 4),  # torchrun itself was started again
        ([None, None], 1),  # an old log, without these numbers
    ],
)
def test_restarts_are_counted_as_torchrun_counts_them(
    starts: list[int | None], restarts: int
) -> None:
    log = []
    for at, number in enumerate(starts):
        each = {"event": "start", "process": at, "joined": at, "time": at}
        log.append(each if number is None else each | {"restart": number})
    assert goodput(log).restarts == restarts


def test_restarts_of_another_torchrun_that_came_late_are_counted_in_full() -> None:
    """The second one's first two attempts were killed before they were in the log."""
    log = [
        {"event": "start", "process": at, "joined": at, "time": at, "job": job, "restart": number}
        for at, (job, number) in enumerate([("7-1", 0), ("9-4", 2), ("9-4", 3)])
    ]
    assert goodput(log).restarts == 4


def test_a_line_that_a_kill_tore_is_ended_and_others_lines_are_left(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"mine": 1}\n{"event": "step", "st')
    made = log.Log.Config(progress=False).build(rank=0, steps=1, folder=str(tmp_path))
    made.event("end")
    made.close()
    assert [each["event"] for each in records(tmp_path / "log.jsonl")] == ["end"]


def test_every_line_of_a_continued_log_is_a_record(text: Path, tmp_path: Path) -> None:
    for steps in (2, 4):
        loop.train(tiny(text, tmp_path / "run", steps))
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines].count("step") == 4


def test_a_run_never_goes_on_after_a_step_whose_record_is_missing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _ends_before_the_record_of(3, patched)
        with pytest.raises(MemoryError):
            loop.train(tiny(text, tmp_path / "run", 5, evaluation__every="3"))
    outcome = loop.train(tiny(text, tmp_path / "run", 5, evaluation__every="3"))
    assert outcome.resumed is not None and outcome.resumed.step == 2
    found = last_of_each_step(records(tmp_path / "run" / "log.jsonl"))
    assert sorted(found) == [1, 2, 3, 4, 5] and "evaluation" in found[3]


def _ends_before_the_record_of(last: int, patched: pytest.MonkeyPatch) -> None:
    """A run ends there as a kill would end it, once the copy of its state has had time to be
    whole."""
    write = log.Log.step

    def step(self: log.Log, step: int, values: dict[str, Any]) -> None:
        if step == last:
            time.sleep(0.5)
            raise MemoryError
        write(self, step, values)

    patched.setattr(log.Log, "step", step)


def test_goodput_is_told_without_a_folder(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop.train(tiny(text, None, 2))
    assert "trainer: goodput" in capsys.readouterr().err


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_job_that_keeps_nothing_says_what_a_restart_does(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    restarts: str,
) -> None:
    loop.train(tiny(text, None, 1))
    assert "no checkpoint.folder" not in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    loop.train(tiny(text, None, 1))
    said = capsys.readouterr().err
    start = "this one starts" if restarts == "1" else "it would start"
    assert f"no checkpoint.folder is set, so a restart has no state to go on from: {start}" in said
    loop.train(tiny(text, tmp_path / "run", 1))
    assert "no checkpoint.folder" not in capsys.readouterr().err


def test_the_longest_position_that_a_checkpoint_tells_may_change(
    text: Path, tmp_path: Path
) -> None:
    rope = {"model__position": "none", "model__block__attention__rotary": "{}"}
    loop.train(tiny(text, tmp_path / "run", 1, **rope))  # as before `longest` was read
    rope["model__block__attention__rotary"] = "{longest = 256}"
    assert loop.train(tiny(text, tmp_path / "run", 2, **rope)).resumed is not None


def test_more_sequences_than_fit_are_refused_before_they_are_made(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.emulation, "available_memory", lambda: 1_000_000)
    with pytest.raises(InvalidOption, match="sequences = 9999999 of .* bytes .* 1000000 are avail"):
        loop.train(tiny(text, None, 1, sequences="9999999"))
    assert loop.train(tiny(text, None, 1)).steps == 1  # 4 sequences of 16 fit


def test_the_memory_that_the_losss_backward_pass_takes_is_counted(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was not counted, Linux killed the process, which could then say nothing."""
    logits = 4 * 256 * 64 * 16  # bytes, of 64 sequences
    monkeypatch.setattr(loop.emulation, "available_memory", lambda: 3 * logits)
    with pytest.raises(InvalidOption, match="take fewer or shorter"):
        loop.train(tiny(text, None, 1, sequences="64"))
    pieces = {"sequences": "64", "accumulation": "4"}
    assert loop.train(tiny(text, None, 1, **pieces)).steps == 1
    assert loop.train(tiny(text, None, 1, sequences="64", model__loss_rows="64")).steps == 1


def test_a_step_takes_the_memory_of_the_ranks_of_this_machine(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.emulation, "available_memory", lambda: 2_000_000)
    config = tiny(text, None, 1, sequences="64")
    four = loop.ranks.Ranks(0, 4, torch.device("cpu"), None, None, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InvalidOption, match="take fewer or shorter"):
        loop._require_memory(config, four, 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # the others are on other machines
    loop._require_memory(config, four, 16)


def test_padded_documents_take_the_memory_of_their_own_lengths(tmp_path: Path) -> None:
    """A step does not have the length that data.length allows, if no document is so long."""
    path = tmp_path / "text"
    path.write_text("\n\n".join(f"document {n}" for n in range(300)))
    whole = {"data__arrangement": "padded", "data__separator": "\n\n", "data__length": "16000000"}
    rope = {"model__position": "none", "model__block__attention__rotary": "{}"}
    assert loop.train(tiny(path, None, 1, sequences="64", **whole, **rope)).steps == 1


def test_an_exported_model_is_not_overwritten(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    model = sizes.llama(1, 32, 2, 48, vocabulary=256).build()
    huggingface.write(first, model.config, model.named_parameters())
    before = {path: path.read_bytes() for path in first.iterdir()}
    pairs = ("data.length=16", "log.progress=false")
    config = configured(str(first), str(text), 1, None, pairs, str(first))
    with pytest.raises(NotExported, match=r"first/\S+ is there already.*name another folder"):
        loop.train(config)
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # killed when it had exported
    loop.train(config)
    assert {path: path.read_bytes() for path in first.iterdir()} != before


def test_a_job_that_was_killed_while_it_exported_goes_on(text: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / ".part").mkdir(parents=True)
    (tmp_path / "out" / ".part" / "model.safetensors").write_bytes(b"half")
    changes = {"data__length": "16", "log__progress": "false", "export": str(tmp_path / "out")}
    pairs = tuple(f"{name.replace('__', '.')}={value}" for name, value in changes.items())
    loop.train(configured("llama-tiny", str(text), 1, None, pairs))
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]


def test_ranks_look_at_the_exports_folder_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, mkdir = threading.Barrier(2, timeout=30), Path.mkdir

    def at_once(self: Path, *args: Any, **options: Any) -> None:
        mkdir(self, *args, **options)
        together.wait()

    monkeypatch.setattr(Path, "mkdir", at_once)
    failed: list[BaseException] = []

    def look() -> None:
        try:
            huggingface.check(tmp_path, sizes.model("llama-tiny"))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == [] and list(tmp_path.iterdir()) == [tmp_path / "shm"]


def test_lora_and_rotary_positions_by_the_command(text: Path, tmp_path: Path) -> None:
    changes = ["model.position=none", "model.block.attention.rotary={}", "sharding.recompute=true"]
    sets = [part for change in changes for part in ("--set", change)]
    run = CliRunner().invoke
    shown = run(main, ["--config", "gpt-tiny", *sets, "--print-config"]).output
    assert "# model.position = LearnedPosition" in shown and "models.position:Rotary" in shown
    lora = with_lora(tiny(text, None, 1))
    lora.save(tmp_path / "lora.toml")
    done = run(main, ["--config", str(tmp_path / "lora.toml"), *sets])
    assert done.exit_code == 0, done.stderr
