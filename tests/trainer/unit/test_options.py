"""Whatever an option is set to, the trainer runs, or one sentence says what is wrong."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glake.errors import GlakeError, InvalidOption, OutOfMemory
from glake.trainer import loop
from glake.trainer.__main__ import configured
from glake.trainer.checkpoint import memory
from glake.trainer.configurable import Configurable
from glake.trainer.fsdp.sharding import Sharded
from glake.trainer.models import sizes
from glake.trainer.models.lora import with_lora
from glake.trainer.optimizers import AGD, WSAM

HOSTILE: list[Any] = [
    *(0, -1, 1, 3, 2**62, -(2**63), 10**30, 0.5, -0.5, 1e300, math.nan, math.inf, -math.inf),
    *("", "x", "\0", "\udcff", "~nobody/x", "a" * 5000, "/proc/none", "**x", "[", "../*", "/x"),
    *("float32", "bfloat16", "float16", "torch", "parameters", "padded", "fused"),
    *(True, None, [], {}, [0.9], [0.9, 0.9, 0.9], [0.9, math.nan], {"class": "os:system"}),
]


class Enough(Exception):
    """Ends a run when a second step begins."""


def gpt() -> loop.Experiment.Config:
    model = sizes.gpt(1, 16, 2, vocabulary=256, longest=32)
    return loop.Experiment.Config(model=model)


def lora_on_experts() -> loop.Experiment.Config:
    model = sizes.llama(1, 16, 2, 16, key_value_heads=1, vocabulary=256)
    model = with_lora(sizes.with_experts(model, experts=2, top_k=1), rank=2)
    config = loop.Experiment.Config(model=model, optimizer=WSAM.Config(base=AGD.Config()))
    config.set("data.separator", "\n")
    config.set("data.arrangement", "padded")
    return config


def nodes(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Configurable.Config):
            yield from nodes(value, f"{path}{field.name}.")


def options() -> Iterator[tuple[Any, str]]:
    """Every option of every part, once."""
    seen = set()
    for make in (gpt, lora_on_experts):
        for path, node in nodes(make()):
            for field in dataclasses.fields(node):
                if (type(node), field.name) not in seen:
                    seen.add((type(node), field.name))
                    yield make, f"{path}{field.name}"


OPTIONS = list(options())


@pytest.fixture(autouse=True)
def one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end before their second step, and write into the test's folder alone."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "text").write_text("the quick brown fox\n" * 80)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "ROOT", tmp_path / "shm")
    step = loop._Run._step

    def first(self: Any) -> Any:
        if self.step:
            raise Enough
        return step(self)

    monkeypatch.setattr(loop._Run, "_step", first)


def run(make: Any, path: str, value: Any) -> None:
    """Runs one step with one option changed. Raises GlakeError if the option refuses the value."""
    config = make()
    for name, plain in (("data.path", "text"), ("data.length", 16), ("sequences", 2), ("steps", 1)):
        config.set(name, plain)
    config.set("log.progress", False)
    if path.startswith(("checkpoint", "log")):
        config.set("checkpoint.folder", "run")
    before = copy.deepcopy(config)
    try:
        config.set(path, value)
    except GlakeError:
        assert config == before, "a refused value changes nothing"
        raise
    loop.train(config)


@pytest.mark.parametrize(("make", "path"), OPTIONS, ids=[path for _, path in OPTIONS])
def test_hostile_values_are_taken_or_refused_in_one_sentence(make: Any, path: str) -> None:
    for value in HOSTILE:
        try:
            run(make, path, value)
        except Enough:
            pass
        except GlakeError as error:
            assert str(error) and "Traceback" not in str(error), (path, value)
        except Exception as error:
            raise AssertionError(f"{path} = {value!r:.60}: {type(error).__name__}") from error


def test_no_part_of_the_trainer_is_left_out() -> None:
    known = {type(node).part for make in (gpt, lora_on_experts) for _, node in nodes(make())}
    kinds, concrete = [Configurable], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("glake.trainer.") and not kind.abstract:
            concrete.add(kind)
    left = {kind for kind in concrete - known if not issubclass(kind, Sharded)}
    assert left == {Configurable}


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("evaluation.steps", 0, "evaluation.steps: 0 is out of range: take 1 or more"),
        ("evaluation.every", -1, "evaluation.every: -1 is out of range: take 0 or more"),
        ("model.loss_rows", 0, "model.loss_rows: 0 is out of range: take 1 or more"),
        ("model.block.attention.head_dim", 0, r"attention.head_dim: 0 is .* take 1 or more and at"),
        ("model.block.feed_forward.hidden", 0, "feed_forward.hidden: 0 is out of range"),
        ("model.position.offset", -1, "model.position.offset: -1 is out of range: take 0 or more"),
        ("model.layers", 10**9, "model.layers: 1000000000 is out of range: .* at most 16384"),
        ("optimizer.betas", [0.9, 0.9, 0.9], "optimizer.betas: .* has 3 entries: take 2"),
        ("optimizer.betas", [0.9, 1.5], "optimizer.betas: 1: 1.5 is .* 0 or more and less than 1"),
        (
            "optimizer.lr",
            math.nan,
            "optimizer.lr: nan is no number that an option may be: take a finite one",
        ),
        ("optimizer.lr", -1.0, "optimizer.lr: -1.0 is out of range: take 0 or more"),
        (
            "schedule.floor",
            2.0,
            "schedule.floor: 2.0 is out of range: take 0 or more and at most 1",
        ),
        ("timeout_s", -1, "timeout_s: -1.0 is out of range: take 1 or more"),
        ("data.path", "\0", "data.path: .* has characters that no file can hold"),
        ("data.path", "a" * 5000, "data.path = .*File name too long; name a file or folder"),
        ("data.pattern", "/x", r"data.pattern = '/x': .*; take one such as '\*\*/\*'"),
        (
            "model.norm",
            {},
            "Norm is abstract: name one of its kinds by 'class'",
        ),
        ("data.length", 33, r"a sequence of 33 tokens; .* 32 learned positions: .*data.length"),
    ],
)
def test_a_refusal_names_the_option_the_value_and_the_way_out(
    path: str, value: Any, text: str, tmp_path: Path
) -> None:
    if path == "data.pattern":
        (tmp_path / "text").unlink()
        (tmp_path / "text").mkdir()
    with pytest.raises(GlakeError, match=text):
        run(gpt, path, value)


def test_turned_positions_need_pairs() -> None:
    with pytest.raises(GlakeError, match=r"head_dim = 5: rotary .* take an even one"):
        run(lora_on_experts, "model.block.attention.head_dim", 5)
    with pytest.raises(GlakeError, match=r"slow_turns is 4.0: take less than 4.0, fast_turns"):
        run(lora_on_experts, "model.block.attention.rotary.slow_turns", 4.0)


def test_leaves_of_different_dtypes_work_together() -> None:
    """Each computes in its own dtype. Earlier, torch refused the mix during a step."""
    for path, dtype in (("norm", "bfloat16"), ("block.attention.key", "bfloat16")):
        run(gpt, f"model.{path}.dtype", dtype)


def test_a_model_that_does_not_fit_says_how_large_it_is() -> None:
    with torch.device("meta"):
        model = sizes.model("gpt-xl").build()
    with (
        pytest.raises(OutOfMemory, match=r"are 6230444800 bytes.*; take a smaller model"),
        loop._in_memory(model),
    ):
        torch.empty(1 << 58)


def test_a_base_of_parts_is_refused() -> None:
    from glake.trainer.models.leaf import Norm

    with pytest.raises(InvalidOption, match="leaf:LayerNorm, glake.trainer.models.leaf:RMSNorm"):
        Norm.Config()


@pytest.mark.parametrize("text", ["\n\n", "\ndef ", " "])
def test_white_space_of_a_value_on_the_command_line_is_kept(text: str) -> None:
    """When it was stripped, such a separator was lost without a word."""
    made = configured("gpt-tiny", "text", None, None, (f"data.separator={text}",))
    assert made.data.separator == text
    spaced = configured("gpt-tiny", None, None, None, ("data.path = text ", " steps= 3"))
    assert (spaced.data.path, spaced.steps) == ("text", 3)
