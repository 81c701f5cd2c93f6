"""The training loop, which runs the experiment that a config describes.

A step depends only on the state (parameters and the optimizer's), the seed and the step's number.
Data, learning rate and random numbers are functions of these. So a run that goes on from a state
gives exactly the losses of a run that was never stopped.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # otherwise torch.optim's first use imports it, during the first step
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from glake.allocator import emulation
from glake.dryrun import child as child_of_dry_run  # tells a dry run, in which values are unknown
from glake.errors import CheckpointMismatch, Diverged, InvalidOption, OutOfMemory, WrongType
from glake.trainer import log, ranks
from glake.trainer.checkpoint import Checkpoint, Resumed
from glake.trainer.checkpoint.signature import signature_of
from glake.trainer.configurable import (
    Configurable,
    Count,
    Natural,
    NonNegative,
    Timeout,
    Width,
    child,
)
from glake.trainer.data import Batch, Data
from glake.trainer.fsdp import Sharding
from glake.trainer.goodput import goodput, last_step, records
from glake.trainer.models import huggingface
from glake.trainer.models.decoder import Decoder
from glake.trainer.optimizers import AdamW, Optimizer
from glake.trainer.optimizers.schedule import Schedule


class Evaluation(Configurable):
    """When a model is evaluated, and on how much text."""

    class Config(Configurable.Config):
        every: Natural = 0  # steps; 0: never
        steps: Count = 8  # batches


class Experiment(Configurable):
    """What is trained, on what, and how. No part refers to another one."""

    class Config(Configurable.Config):
        model: Decoder.Config
        sharding: Sharding.Config = child(Sharding.Config)
        optimizer: Optimizer.Config = child(AdamW.Config)
        schedule: Schedule.Config = child(Schedule.Config)
        data: Data.Config = child(Data.Config)
        evaluation: Evaluation.Config = child(Evaluation.Config)
        checkpoint: Checkpoint.Config = child(Checkpoint.Config)
        log: log.Log.Config = child(log.Log.Config)
        steps: Count = 1000
        sequences: Width = 8  # in a step, on all ranks together
        accumulation: Width = 1  # passes into which a rank's part of a step is divided
        clip: NonNegative = 1.0  # the norm that gradients are clipped to; 0: no clipping
        seed: Natural = 0
        weights: str = ""  # a checkpoint of transformers to begin with; "": random, by the seed
        export: str = ""  # where to write the trained model as a checkpoint of transformers
        deterministic: bool = False  # the same bits in each run on GPUs, with slower kernels
        timeout_s: Timeout = 600.0  # a rank that does not answer for so long counts as lost


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        steps: how many were done in all.
        loss: the last step's loss.
        evaluation: the last evaluation's loss; None: there was none.
        resumed: the checkpoint from which the run went on; None: the run began.
    """

    steps: int
    loss: float  # of the last step
    evaluation: float | None
    resumed: Resumed | None


class Interrupted(KeyboardInterrupt):
    """The user has interrupted a run, which has said where the same command goes on."""


def train(config: Experiment.Config) -> Outcome:
    """Trains on this rank. Training begins with the newest whole checkpoint, if there is one. A
    user's Control-C is a KeyboardInterrupt, after the run has said how it can go on.

    Every rank of a torchrun job calls this function, or one process alone.

    Args:
        config: the experiment.

    Raises:
        DataMissing: there is no such text.
        DataTooShort: the text does not make one batch.
        CheckpointMismatch: the checkpoint is of another model or optimizer.
        NoWholeCheckpoint: there are checkpoints, but none is whole.
        FolderInUse: another job trains into the same folder.
        RankLost: another rank ended or stopped answering.
        Diverged: the loss or a gradient is not finite.
        NotExported: the export's folder has a model already, or no file can be written there.
        InvalidOption: an option does not take its value.
        WrongType: `config` is no config of an experiment.
    """
    if not isinstance(config, Experiment.Config):
        raise WrongType(f"config is an Experiment.Config, not {config!r}")
    with (
        ranks.joined(config.timeout_s) as here,
        ranks.lost_ranks(),
        contextlib.ExitStack() as ends,
    ):
        run = _Run(config, here, ends)
        try:
            return run.train()
        except KeyboardInterrupt as error:
            if here.count > 1:  # after a Control-C at a terminal, torchrun sends it once more
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            run.log.say(f"interrupted: {run.checkpoint.interrupted()}")
            raise Interrupted from error


class _Run:
    """An experiment on one rank."""

    def __init__(
        self, config: Experiment.Config, here: ranks.Ranks, ends: contextlib.ExitStack
    ) -> None:
        """Builds the parts, and loads the newest whole state. `ends` closes them at the end of the
        run."""
        joined = time.time()
        self.here = here
        self.step, self.tokens = 0, 0
        self.loss = math.nan  # of the last step
        self._evaluated: float | None = None
        _require_consistent(config)
        config, alone = _kept_from_a_dry_run(config)
        self.config = config
        own, folder = config.log, config.checkpoint.folder
        self.log: log.Log = own.build(
            rank=here.rank, steps=config.steps, folder=folder, device=here.device
        )
        ends.callback(self.log.close)
        if alone:
            self.log.say(f"a dry run reads and writes no checkpoint, and exports nothing: {alone}")
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        self.data: Data = config.data.build(sequences=config.sequences, seed=config.seed)
        if self.data.vocabulary > config.model.vocabulary:
            raise InvalidOption(
                f"model.vocabulary = {config.model.vocabulary}, and the text's tokens go up to "
                f"{self.data.vocabulary}: --set model.vocabulary={self.data.vocabulary}"
            )
        _require_memory(config, here, self.data.tokens_of_sequence)
        if config.evaluation.every:
            self.data.check_evaluation(config.evaluation.steps)
        if config.export:
            huggingface.check(config.export, config.model, again=ranks.restarts() > 0)
        torch.manual_seed(config.seed)
        with torch.device("meta"):
            model = config.model.build()
        signature = signature_of(model, config) | {"tokens of text": str(self.data.tokens)}
        with _in_memory(model):
            self.sharded = config.sharding.build(model, device=here.device)
        self.optimizer = config.optimizer.build(
            self.sharded.named_parameters(), norm=self.sharded.norm_of
        )
        self.sharded.attach(self.optimizer)
        self.schedule = config.schedule.build(steps=config.steps)
        self.flops = _flops_per_token(config, self.log) if config.log.peak_flops else 0.0
        self.checkpoint: Checkpoint = config.checkpoint.build(
            group=here.checkpoints, say=self.log.say, text=str(config), signature=signature
        )
        ends.callback(self.checkpoint.close)
        ranks.warn_of_restarts(folder, self.log.say)
        self.resumed = self.checkpoint.resume(self.sharded.state, self.optimizer)
        if self.resumed is not None:
            self.step, notes = self.resumed.step, self.resumed.notes
            if not isinstance(notes.get("tokens"), int) or not isinstance(notes.get("loss"), float):
                raise CheckpointMismatch(
                    f"step {self.step} of {self.resumed.source} does not say its tokens and loss, "
                    f"but {notes}: another program wrote it; use another checkpoint.folder"
                )
            self.tokens, self.loss = notes["tokens"], notes["loss"]
            done = "" if self.step < config.steps else f": steps = {config.steps} are done"
            self.log.say(f"goes on after step {self.step}, from {self.resumed.source}{done}")
        elif config.weights:
            weights = huggingface.read_weights(Path(config.weights).expanduser())
            for name, value in huggingface.matched(config.model, weights):
                self.sharded.put(name, value)
            self.log.say(f"begins with the weights in {config.weights}")
        self._tell_of_repeated()
        self.log.event(
            "start",
            run=self.checkpoint.run,
            process=ranks.process_began(),
            joined=joined,
            job=ranks.job(),
            restart=ranks.restarts(),
            step=self.step,
            source=self.resumed.source if self.resumed else None,
            ranks=here.count,
        )

    def _tell_of_repeated(self) -> None:
        """Says which steps of the log are done again, because no state after them is left."""
        path = self.log.folder / "log.jsonl" if self.log.folder else None
        if self.here.rank != 0 or not self.checkpoint.run or path is None or not path.exists():
            return
        logged = last_step(records(path), self.checkpoint.run)
        if logged > self.step:
            first = self.step + 1
            again = f"steps {first} to {logged} are" if logged > first else f"step {logged} is"
            self.log.say(
                f"the log has {logged} steps of this run, and no state after step {self.step} is "
                f"left: {again} done again"
            )

    def train(self) -> Outcome:
        """Runs all steps that are left."""
        config = self.config
        began, stalled, tokens = time.perf_counter(), 0.0, self.tokens
        while self.step < config.steps:
            self.here.check()
            values = self._step()
            self.log.profiled()
            last, every = self.step == config.steps, config.evaluation.every
            evaluates = every > 0 and (last or self.step % every == 0)
            if self.step % config.log.every == 0 or last or evaluates:
                now, stall = time.perf_counter(), self.checkpoint.stall_s
                seconds, rate = now - began, (self.tokens - tokens) / (now - began)
                values |= {"seconds": seconds, "stall_s": stall - stalled, "tokens": self.tokens}
                values |= {"tokens_per_s": rate} | log.memory(self.here.device)
                if self.flops:
                    values["mfu"] = rate * self.flops / (config.log.peak_flops * self.here.count)
                if evaluates:
                    values["evaluation"] = self._evaluated = self.evaluate()
                    self.log.say(f"step {self.step}: loss on the text kept {self._evaluated:.4f}")
                self.log.step(self.step, values)
                began, stalled, tokens = time.perf_counter(), stall, self.tokens
            # Last, so that a run never goes on after a step whose record or evaluation is missing.
            self.checkpoint.after_step(self.step, {"tokens": self.tokens, "loss": self.loss})
        return self._finish()

    def _step(self) -> dict[str, Any]:
        """Runs one step. Returns its loss, learning rate and the norm of its gradients."""
        here, config = self.here, self.config
        torch.manual_seed(_mixed(config.seed, self.step, here.rank))
        batches = self.data.batch(self.step, here.rank, here.count, config.accumulation)
        total = self._passes(batches)
        self.checkpoint.settle()
        count = here.total(sum(batch.count for batch in batches))
        if count == 0:
            raise InvalidOption(f"step {self.step}: no token of the text is predicted")

        def clipped() -> Any:
            return self.sharded.clip_gradients(config.clip or None, scale=1.0 / count)

        norms = [clipped()]

        def again() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self._passes(batches)
            norms.append(clipped())

        rate = self.schedule.apply(self.optimizer, self.step)
        closures: list[Any] = [again] if getattr(self.optimizer, "takes_closure", False) else []
        self.optimizer.step(*closures)
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        self.step, self.tokens = self.step + 1, self.tokens + count
        self.loss = self._finite("loss", total / count)  # before it is saved
        norm = [self._finite("gradients' norm", each) for each in norms][0]
        return {"loss": self.loss, "rate": rate, "norm": norm}

    def _passes(self, batches: list[Batch]) -> Any:
        """Runs forward and backward over the rank's part of a step. Returns the sum of its tokens'
        losses."""
        total = torch.zeros((), dtype=torch.float32, device=self.here.device)
        for batch in batches:
            waits = batch is not batches[-1]
            with self.sharded.accumulate() if waits else contextlib.nullcontext():
                found = self._loss(batch)
                found.total.backward()
            total += found.total.detach()
        return total

    def _loss(self, batch: Batch) -> Any:
        where = {}
        if batch.segments is not None:
            where["segments"] = torch.from_numpy(batch.segments).to(self.here.device)
        tokens, targets = (
            torch.from_numpy(each).to(self.here.device) for each in (batch.tokens, batch.targets)
        )
        return self.sharded(tokens, targets, **where)

    def evaluate(self) -> float:
        """The loss on the text that is kept for evaluation, without dropout. The text is the same
        each time."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.here.device)
        self.sharded.module.eval()
        try:
            with torch.no_grad():
                for batch in self.data.evaluation(
                    self.config.evaluation.steps, self.here.rank, self.here.count
                ):
                    sums[0] += self._loss(batch).total
                    sums[1] += batch.count
        finally:
            self.sharded.module.train()
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])

    def _finite(self, what: str, found: Any) -> float:
        value = float(found)
        if not math.isfinite(value) and child_of_dry_run.VARIABLE not in os.environ:
            raise Diverged(
                f"the {what} of step {self.step} is {value}: lower the learning rate, clip "
                "harder, or take another seed. The last state is before it; where that is too "
                "late, remove the newest checkpoints, and go on with checkpoint.memory=false"
            )
        return value

    def _finish(self) -> Outcome:
        self.checkpoint.finish(self.step, {"tokens": self.tokens, "loss": self.loss})
        if self.config.export:  # all ranks gather the parameters, one at a time
            weights = self.sharded.full_parameters()
            if self.here.rank == 0:
                huggingface.write(self.config.export, self.config.model, weights)
            deque(weights, maxlen=0)
            self.log.say(
                f"the model is in {self.config.export}, for transformers' from_pretrained()"
            )
        self.log.snapshot()
        self.log.event("end", step=self.step, stall_s=self.checkpoint.stall_s)
        if self.here.rank == 0 and not self.log.lost:
            folder = self.log.folder
            with contextlib.suppress(FileNotFoundError):  # removed by somebody
                told = records(folder / "log.jsonl") if folder else self.log.records
                self.log.say(str(goodput(told)))
        return Outcome(self.step, self.loss, self._evaluated, self.resumed)


def _require_consistent(config: Experiment.Config) -> None:
    """Raises InvalidOption if options of different parts contradict each other."""
    if config.sharding.fsdp == "torch" and config.checkpoint.folder:
        raise InvalidOption(
            "sharding.fsdp = 'torch' is for comparison, and keeps no checkpoints, nor a last one "
            "(checkpoint.every=0): leave out --folder (checkpoint.folder); log.folder takes the log"
        )
    text = os.path.realpath(os.path.expanduser(config.data.path))
    for option in ("checkpoint.folder", "log.folder", "export"):
        path = os.path.realpath(os.path.expanduser(config.get(option)))
        if config.get(option) and os.path.isdir(text) and Path(path).is_relative_to(text):
            raise InvalidOption(
                f"{option} = {path!r} lies in data.path: the run would train on what it writes; "
                "name a folder outside"
            )


def _kept_from_a_dry_run(config: Experiment.Config) -> tuple[Experiment.Config, str]:
    """The config with which `glake dry-run` touches none of the user's states, and a text about
    what is left alone. In a dry run values are unknown, and each allocator's run begins at the
    first step."""
    dry = os.environ.get(child_of_dry_run.VARIABLE)
    options = ("checkpoint.folder", "export", "log.folder")
    given = [option for option in options if config.get(option)]
    if dry is None or not given:
        return config, ""
    request, config = json.loads(dry), copy.deepcopy(config)
    folder = config.log.folder or config.checkpoint.folder
    if folder and not request["numbers"]:  # the values to log are unknown too
        folder = str(Path(request["folder"]) / "trainer")  # the request's folder is temporary
    config.log.folder, config.checkpoint.folder, config.export = folder, "", ""
    return config, f"{' and '.join(given)} left as they are"


def _require_memory(config: Experiment.Config, here: ranks.Ranks, length: int) -> None:
    """Raises InvalidOption if the host has too little memory for a step's sequences, of `length`
    tokens each."""
    model = config.model
    arrays = 2 * 8 * config.sequences * length  # tokens and targets
    alive = 0  # bytes that a pass keeps on the host
    if here.device.type == "cpu":
        item = 2 if config.sharding.compute_dtype in ("bfloat16", "float16") else 4
        blocks = model.dim * (model.layers + 1)  # each one's input, which recomputation keeps too
        # The loss's backward pass holds probabilities and two gradients at once, in float32.
        logits = 0 if model.loss_rows else 3 * 4 * model.vocabulary
        alive = (item * blocks + logits) * config.sequences * length // config.accumulation
    least = (arrays + alive) * ranks.here_of(here.count) // here.count
    there = emulation.available_memory()
    if least > there:
        raise InvalidOption(
            f"sequences = {config.sequences} of {length} tokens (data.length): a step takes "
            f"{least} bytes of host memory at least, and {there} are available: take fewer "
            "or shorter sequences, or more accumulation"
        )


@contextmanager
def _in_memory(model: Any) -> Iterator[None]:
    """Turns torch's error about a model that does not fit on this rank into OutOfMemory."""
    try:
        yield
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        size = sum(each.nbytes for each in model.parameters())
        raise OutOfMemory(
            f"the model's parameters are {size} bytes, of which each rank keeps its share, and "
            f"makes a block at a time: {str(error).splitlines()[0]}; take a smaller model, more "
            "ranks, or sharding.offload"
        ) from error


def _mixed(seed: int, step: int, rank: int) -> int:
    """The seed of a step's random numbers on a rank."""
    words = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1


def _flops_per_token(config: Experiment.Config, told: log.Log) -> float:
    """The operations of a forward and a backward pass, for each token of a longest sequence. They
    are the model's matrix products: three times those that torch's counter finds in the forward
    pass. Recomputation does not count."""
    length = config.data.length
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
            config.model.build()(torch.zeros(1, length, dtype=torch.int64))
    except (RuntimeError, NotImplementedError) as error:
        told.say(f"no MFU: this model's FLOPs cannot be counted ({str(error).splitlines()[0]})")
        return 0.0
    return float(3.0 * counter.get_total_flops() / length)
