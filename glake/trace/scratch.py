"""A table of the memory that CUDA kernels allocate for themselves. No fake kernel shows it.

These are estimates from how torch and FlashAttention are known to work. They are NOT calibrated on
hardware. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from glake.trace.job import SCRATCH

_KIB = 1 << 10

# The cuBLAS workspace. torch's allocator holds one for good, for each stream and each handle (a
# thread has one handle). Its size is that of CUBLAS_WORKSPACE_CONFIG at docs.pytorch.org:
# ":4096:2:16:8" (2 x 4096 KiB and 8 x 16 KiB), and 32 MiB on Hopper. torch's cuBLASLt calls share
# it (TORCH_CUBLASLT_UNIFIED_WORKSPACE).
WORKSPACE = {"ampere": (4096 * 2 + 16 * 8) * _KIB, "hopper": 32 << 20}

_aten = torch.ops.aten
_MATRIX_PRODUCTS = {
    _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addmv, _aten.mv, _aten.dot,
    _aten._addmm_activation,
}  # fmt: skip


def _round(value: int, to: int) -> int:
    return -(-value // to) * to


def _flash_backward(args: Any, out: Any) -> list[int]:
    """mha_bwd of FlashAttention 2: softmax_d and dq_accum in float, dk and dv for grouped heads.

    The sequence is rounded up to 128, and the head size to 32. q and k are [batch, heads, sequence,
    head size].
    """
    query, key = args[1], args[2]
    batch, heads, queries, size = query.shape
    rows = batch * heads * _round(queries, 128)
    sizes = [rows * 4, rows * _round(size, 32) * 4]
    if key.shape[1] != heads:
        sizes += [batch * heads * key.shape[2] * size * key.element_size()] * 2
    return sizes


def _efficient_backward(args: Any, out: Any) -> list[int]:
    """The memory-efficient backward: delta in float, and dq accumulated in float for half types."""
    query = args[1]
    batch, heads, queries, size = query.shape
    sizes = [batch * heads * _round(queries, 32) * 4]
    if query.element_size() < 4:
        sizes.append(batch * heads * _round(queries, 64) * size * 4)
    return sizes


def _embedding_backward(args: Any, out: Any) -> list[int]:
    """embedding_dense_backward above 3072 indices: sorted and original indices, cub's workspace of
    the same size, and a partial sum in float for each segment.

    There is a segment for each distinct index (at most the vocabulary), and for each further 10
    rows.
    """
    grad, indices, vocabulary = args[0], args[1], int(args[2])
    count = indices.numel()
    if count <= 3072:
        return []
    keys = count * indices.element_size()
    segments = min(count, min(count, vocabulary) + count // 10)
    return [keys, keys, 2 * keys, segments * grad.shape[-1] * 4]


def _sort(args: Any, out: Any) -> list[int]:
    """The second buffer of a radix sort, for keys and 64-bit places."""
    return [args[0].numel() * (args[0].element_size() + 8)]


_TABLE: dict[Any, Callable[[Any, Any], list[int]]] = {
    _aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    _aten.embedding_dense_backward: _embedding_backward,
    _aten.sort: _sort,
}


class Scratch:
    """One of the tables in SCRATCH. "none" is empty."""

    def __init__(self, name: str) -> None:
        assert name in SCRATCH
        self.name = "hopper" if name == "default" else name
        self.workspace = WORKSPACE.get(self.name, 0)
        self._table = _TABLE if self.workspace else {}

    def uses_workspace(self, operator: Any) -> bool:
        """Whether the operator calls cuBLAS."""
        return getattr(operator, "overloadpacket", None) in _MATRIX_PRODUCTS

    def sizes(self, operator: Any, args: Any, out: Any) -> list[int]:
        """The bytes of each block that the operator takes while it runs."""
        rule = self._table.get(getattr(operator, "overloadpacket", None))
        return [each for each in rule(args, out) if each > 0] if rule else []

    def describe(self) -> str:
        """One line for the trace's header."""
        if not self.workspace:
            return "none"
        return (
            f"{self.name} (not calibrated on hardware): cuBLAS workspace of {self.workspace} bytes "
            "per thread and stream; flash and efficient backward, embedding backward, sort"
        )
