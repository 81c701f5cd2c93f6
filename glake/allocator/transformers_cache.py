"""A cache for `generate()` of Hugging Face's transformers, in virtual memory.

transformers' own DynamicCache makes each layer's keys and values anew for each token, one element
longer, and copies what it has. Here they grow in place. docs/virtual.md explains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from glake.allocator.kv_cache import KVCache
from glake.arguments import count
from glake.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_TOKENS = 1 << 17  # for models that do not say how long a text may be


class TransformersCache(DynamicCache):  # type: ignore[misc]
    """As transformers.DynamicCache, for `model.generate(..., past_key_values=cache)`.

    Layers with full attention grow in place, in memory of the model's GPU that glake lends them
    page by page. Layers of other kinds (sliding windows, linear attention) are transformers' own.
    It is for inference: keys that require a gradient are refused.

    Args:
        config: the model's.
        tokens: the most that a text may have, the prompt included. Addresses cost no memory.
            None: the model's own limit (max_position_embeddings).

    Raises:
        InvalidArgument: `tokens` is below 1.
        WrongType: `tokens` is no whole number, or `config` is no model's.
    """

    def __init__(self, config: PretrainedConfig, tokens: int | None = None) -> None:
        """Takes no memory."""
        if not hasattr(config, "get_text_config"):
            raise WrongType(f"the config of a TransformersCache is a model's, not {config!r}")
        if tokens is None:
            text = config.get_text_config(decoder=True)
            tokens = getattr(text, "max_position_embeddings", None) or _TOKENS
        most = count("tokens of a TransformersCache", tokens)
        if most < 1:
            raise InvalidArgument(f"{tokens} tokens of a TransformersCache: 1 or more")
        super().__init__(config=config)
        self.layers: list[Any] = [
            _Layer(most) if type(each) is DynamicLayer else each for each in self.layers
        ]


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer of a whole batch, as one sequence of a KVCache of its own."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Reserves the addresses, once the shapes are known."""
        batch, heads, _, width = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        self._like = _like(key_states, value_states)
        self._cache = KVCache(
            1,
            batch * heads,
            width,
            self.dtype,
            self._tokens,
            layout="layers",
            value_dim=value_states.shape[-1],
            device=self.device if self.device.type == "cuda" else 0,
        )
        self._sequence = self._cache.add()
        self._show()
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends the new tokens.

        Raises:
            OutOfMemory: there is no room. The cache stays as it was.
            InvalidArgument: the text becomes longer than the cache allows, the batch is another one
                than that of the tokens it has, or the keys require a gradient.
        """
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise InvalidArgument(
                "TransformersCache is for inference, and these keys require a gradient: call the "
                "model under torch.no_grad(), or use transformers' DynamicCache"
            )
        had = self.get_seq_length()
        if not self.is_initialized or self._like != _like(key_states, value_states):
            if had:
                raise InvalidArgument(
                    f"keys of {_text(key_states)} and values of {_text(value_states)} for a cache "
                    f"that has {had} tokens of {_text(self.keys)} and {_text(self.values)}: "
                    "reset() it first"
                )
            self.lazy_initialization(key_states, value_states)
        self._follow_stream()
        self._cache.grow(self._sequence, had + key_states.shape[-2])
        self._show()
        self.keys[:, :, had:] = key_states
        self.values[:, :, had:] = value_states
        return self.keys, self.values

    def reset(self) -> None:
        """Forgets all tokens. Their memory serves others, and the next text if it is still free."""
        if self.is_initialized:
            self._shorten(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes tokens off the end. `tokens_to_remove` is negative, as transformers has it."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): a negative number of tokens to take off")
        if tokens_to_remove != 0 and self.is_initialized:
            self._shorten(max(0, self.get_seq_length() + tokens_to_remove))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Takes other rows of the batch, as beam search does."""
        if self.get_seq_length() > 0:
            for tokens in (self.keys, self.values):
                tokens.copy_(tokens.index_select(0, beam_idx.to(tokens.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row of the batch."""
        if self.get_seq_length() > 0:
            self._replace(
                self.keys.repeat_interleave(repeats, dim=0),
                self.values.repeat_interleave(repeats, dim=0),
            )

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps some rows of the batch."""
        if self.get_seq_length() > 0:
            self._replace(self.keys[indices, ...], self.values[indices, ...])

    def _replace(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begins anew with the keys and values of another batch."""
        self.reset()
        self.update(keys, values)

    def _shorten(self, length: int) -> None:
        self._follow_stream()
        self._cache.cut(self._sequence, length)
        self._show()

    def _follow_stream(self) -> None:
        """Orders pages by the stream in which the caller works now, as torch orders tensors."""
        if self.device.type == "cuda":
            self._cache.buffer.stream = torch.cuda.current_stream(self.device).cuda_stream

    def _show(self) -> None:
        """Makes tensors of the tokens that there are. Their storage has no other tokens, so that
        they may be copied, saved and compiled."""
        self.keys, self.values = (
            tokens.view(-1, *self._like[:2], tokens.shape[2]).permute(1, 2, 0, 3)
            for tokens in self._cache.view(self._sequence, 0)
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy has memory of its own."""
        both = (self.keys, self.values) if self.is_initialized else (None, None)
        keys, values = (each if each is None else each.detach().clone() for each in both)
        return {"tokens": self._tokens, "keys": keys, "values": values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _Layer.__init__(self, state["tokens"])
        if state["keys"] is not None:
            self.update(state["keys"], state["values"])


def _like(keys: torch.Tensor, values: torch.Tensor) -> tuple[Any, ...]:
    """What the keys and values of all tokens have in common."""
    batch, heads, _, width = keys.shape
    return batch, heads, width, values.shape[-1], keys.dtype, keys.device


def _text(keys: torch.Tensor) -> str:
    batch, heads, _, width = keys.shape
    return f"[{batch}, {heads}, tokens, {width}] {keys.dtype} on {keys.device}"
