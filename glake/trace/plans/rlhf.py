"""RLHF steps: generate with growing caches, score, then train actor and critic (PPO).

There are four models: actor and critic, which are trained, and the frozen reference and reward
models. The many small, growing blocks of generation and the large blocks of training take turns in
the same memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from glake.trace.plans import configs, engines, models, moe, strategies, train
from glake.trace.plans.configs import Model
from glake.trace.plans.options import SIZES, PlanOptions


def log_probabilities(logits: Any, ids: Any) -> Any:
    """The log probability of each token except the first, given those before it: (batch, length -
    1), float32."""
    from torch.nn import functional

    flat = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
    loss = functional.cross_entropy(flat, ids[:, 1:].reshape(-1), reduction="none")
    return -loss.view(ids.shape[0], -1)


class Trainer:
    """The four models of PPO, and their work in a step."""

    def __init__(self, job: Any, model: Model, options: PlanOptions) -> None:
        plain = dataclasses.replace(options, lora=0)
        critic = model
        if options.critic != "same":
            bare: dict[str, Any] = dict.fromkeys([*(n.replace("-", "_") for n in SIZES), "arch"])
            critic = configs.load(options.critic, dataclasses.replace(options, **bare))
        self.job, self.options = job, options
        self.actor = strategies.make(job, model, options)
        self.critic = strategies.make(job, critic, plain, head="value")
        self.reference = engines.frozen(job, model, plain)
        self.reward = engines.frozen(job, critic, plain, head="value")
        self.vocab = min(model.build().vocab_size, critic.build().vocab_size)

    def generate(self, prompt: int, new: int) -> Any:
        """Generates token ids (batch, prompt + new), by one forward pass for each token over a
        growing cache."""
        import torch
        from transformers import DynamicCache

        actor = getattr(self.actor.model, "module", self.actor.model)
        actor.eval()
        ids = train.tokens(self.job, self.vocab, self.options.batch, prompt)
        cache, latest = DynamicCache(), ids
        with torch.no_grad(), self.actor.autocast():
            for _ in range(new):
                out = actor(
                    input_ids=latest, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                latest = out.logits[:, -1].argmax(-1, keepdim=True)
                ids = torch.cat([ids, latest], dim=1)
                del out
        actor.train()
        return ids

    def score(self, ids: Any) -> tuple[Any, Any]:
        """The old log probabilities and the advantages of every token, without gradients."""
        import torch

        with torch.no_grad(), self.actor.autocast():
            old = log_probabilities(self.actor.model(input_ids=ids, use_cache=False).logits, ids)
            logits = self.reference(input_ids=ids, use_cache=False).logits
            kept = log_probabilities(logits, ids)
            del logits
            values = self._values(self.critic.model, ids)
            rewards = self._values(self.reward, ids) - 0.1 * (old - kept)
        return old, rewards - values

    def _values(self, model: Any, ids: Any) -> Any:
        return model(input_ids=ids, use_cache=False).logits[:, :-1, 0].float()

    def learn(self, ids: Any, old: Any, advantages: Any) -> None:
        """One update of the actor (clipped ratio) and one of the critic (squared error)."""
        import torch

        with self.actor.autocast():
            logits = self.actor.model(input_ids=ids, use_cache=False).logits
            ratio = torch.exp(log_probabilities(logits, ids) - old)
            del logits
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        self.actor.backward(loss)
        self.actor.step()
        del ratio, clipped, loss
        with self.critic.autocast():
            error = (self._values(self.critic.model, ids) - advantages).square().mean()
        self.critic.backward(error)
        self.critic.step()


def make_step(job: Any, model: Model, options: PlanOptions) -> Callable[[int], None]:
    """The function that does PPO step i: it generates one batch, scores it and learns from it."""
    longest = options.seq.most + options.multiple + options.output.most
    models.check_length(model.build(), model.name, longest, "seq and output together")
    drawn = moe.start(options, job.seed)
    trainer = Trainer(job, model, options)
    prompts = options.seq.series(job.seed, options.multiple)
    outputs = options.output.series(job.seed + 1)
    lengths = " ".join(str(prompts(i) + outputs(i)) for i in range(job.steps))
    train.note(job, model, options, sequence_lengths=lengths)

    def step(i: int) -> None:
        drawn.batch = i
        ids = trainer.generate(prompts(i), outputs(i))
        old, advantages = trainer.score(ids)
        trainer.learn(ids, old, advantages)

    return step
