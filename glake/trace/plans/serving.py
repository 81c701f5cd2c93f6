"""Serving steps: requests arrive, are prefilled in chunks, decode together and leave.

Key-value caches are transformers' DynamicCache, which grows by concatenation. For every token each
layer's keys and values are allocated again, one token longer. If a request joins or leaves, those
of the whole batch are allocated again. Engines with paged caches hold one fixed pool instead. So
this is the hard case.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glake.trace.plans import models, moe, train
from glake.trace.plans.configs import Model
from glake.trace.plans.options import PlanOptions


@dataclass
class Request:
    """A request: its prompt's tokens, the tokens that are still to be generated, and the prompt
    tokens that are in its cache."""

    prompt: int
    remaining: int
    done: int = 0
    cache: Any = None

    @property
    def length(self) -> int:
        return self.done


class Server:
    """One replica: a queue, at most one request in prefill, and a batch that decodes."""

    def __init__(self, job: Any, model: Model, options: PlanOptions) -> None:
        self.options = options
        self.device: str = job.device
        self.model = models.build(model, options, job.device, trainable=False)
        self.vocab: int = self.model.config.vocab_size
        self.chance = random.Random(f"{job.seed}/arrivals")
        self.prompts = options.seq.series(job.seed, options.multiple)
        self.outputs = options.output.series(job.seed + 1)
        self.arrived = 0
        self.waiting: deque[Request] = deque()
        self.entering: Request | None = None
        self.running: list[Request] = []
        self.cache: Any = None

    def tick(self) -> None:
        """Does a scheduler's work between two tokens, and generates one token for every running
        request."""
        self._arrive()
        if self.entering is None and self.waiting and len(self.running) < self.options.batch:
            self.entering = self.waiting.popleft()
        if self.entering is not None:
            self._prefill(self.entering)
        if self.running:
            self._decode()

    def _arrive(self) -> None:
        """Poisson arrivals, by multiplying uniform numbers. The first tick always has one."""
        count, product = 0, self.chance.random()
        while product > math.exp(-min(self.options.arrivals, 700.0)):
            count, product = count + 1, product * self.chance.random()
        for _ in range(max(count, self.arrived == 0)):
            length, output = self.prompts(self.arrived), self.outputs(self.arrived)
            self.waiting.append(Request(length, output))
            self.arrived += 1

    def _forward(self, batch: int, new: int, past: int, cache: Any, padded: bool) -> Any:
        import torch

        ids = train.tokens(self, self.vocab, batch, new)
        mask = torch.ones(batch, past + new, dtype=torch.int64, device=self.device)
        places = torch.arange(past, past + new, device=self.device).expand(batch, new)
        self.model(
            input_ids=ids,
            attention_mask=mask if padded else None,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits.argmax(-1)

    def _prefill(self, request: Request) -> None:
        from transformers import DynamicCache

        if request.cache is None:
            request.cache = DynamicCache()
        part = min(self.options.chunk, request.prompt - request.done)
        self._forward(1, part, request.done, request.cache, padded=False)
        request.done += part
        if request.done == request.prompt:
            self._join(request)
            self.entering = None

    def _join(self, request: Request) -> None:
        """Adds a prefilled request's cache to the batch's. The shorter one is padded on the
        left."""
        import torch

        longest = max([each.length for each in self.running], default=0)
        both = max(longest, request.length)
        if self.cache is None:
            self.cache = request.cache
        else:
            for old, new in zip(self.cache.layers, request.cache.layers, strict=True):
                for name in ("keys", "values"):
                    parts = [getattr(old, name), getattr(new, name)]
                    wide = [_left_padded(each, both) for each in parts]
                    setattr(old, name, torch.cat(wide, dim=0))
                    del parts, wide
        request.cache = None
        self.running.append(request)

    def _decode(self) -> None:
        past = max(each.length for each in self.running)
        self._forward(len(self.running), 1, past, self.cache, padded=True)
        for each in self.running:
            each.done += 1
            each.remaining -= 1
        stay = [i for i, each in enumerate(self.running) if each.remaining > 0]
        if len(stay) < len(self.running):
            self._leave(stay)

    def _leave(self, stay: list[int]) -> None:
        """Keeps only the rows of ``stay``, and only as many columns as the longest of them
        needs."""
        import torch

        self.running = [self.running[i] for i in stay]
        if not self.running:
            self.cache = None
            return
        rows = torch.tensor(stay, device=self.device)
        longest = max(each.length for each in self.running)
        self.cache.batch_select_indices(rows)
        for layer in self.cache.layers:
            if layer.keys.shape[-2] > longest:
                layer.keys = layer.keys[..., -longest:, :].contiguous()
                layer.values = layer.values[..., -longest:, :].contiguous()


def _left_padded(tensor: Any, length: int) -> Any:
    from torch.nn import functional

    missing = length - tensor.shape[-2]
    return functional.pad(tensor, (0, 0, missing, 0)) if missing else tensor


def make_step(job: Any, model: Model, options: PlanOptions) -> Callable[[int], None]:
    """The function that does step i: ``ticks`` forward passes of the batch."""
    import torch

    longest = options.seq.most + options.multiple + options.output.most
    models.check_length(model.build(), model.name, longest, "seq and output together")
    moe.start(options, job.seed)
    server = Server(job, model, options)
    train.note(job, model, options, sequence_lengths=options.seq.text)

    def step(i: int) -> None:
        with torch.no_grad():
            for _ in range(options.ticks):
                server.tick()

    return step
