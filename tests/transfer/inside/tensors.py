"""torch's CPU tensors, and .to(), in the emulation.

There torch's own tensors lie in simulated GPU memory, and those of from_numpy in host memory.
"""

import numpy as np
import pytest
import torch

import glake
from glake import _C, errors
from glake import transfer as t

glake.enable()

from glake.transfer import tensors  # noqa: E402

CPU = torch.device("cpu")


def host(*shape: int, dtype: str = "float32") -> torch.Tensor:
    size = int(np.prod(shape))
    return torch.from_numpy(np.arange(size).astype(dtype).reshape(shape))


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor as to() does to a GPU: from host memory into torch's own, here a GPU's."""
    out = tensors._copied(t.default_engine(), tensor, CPU, False)
    assert _C.place_of(out.untyped_storage().data_ptr()) == (0, True)
    return out


def test_where_tensors_are() -> None:
    t.default_engine()
    assert _C.place_of(torch.zeros(4).data_ptr()) == (0, True)
    assert _C.place_of(host(4).data_ptr()) == (-1, False)
    assert _C.place_of(t.pinned(4, torch.float64).data_ptr()) == (-1, True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_copies_of_tensors(dtype: torch.dtype) -> None:
    there = torch.randn(7, 33).to(dtype)
    back = t.pinned((7, 33), dtype)
    assert back.dtype == dtype and t.copy(back, there).wait().bytes == there.nbytes
    assert torch.equal(back, there)
    into = torch.zeros(33, 7, dtype=dtype).T
    version = into._version
    t.copy(into, back).wait()
    assert torch.equal(into, there) and into._version > version


@pytest.mark.parametrize(
    "tensor",
    [
        host(6, 5).T,
        host(4, 3, 8, 8).contiguous(memory_format=torch.channels_last),
        host(1, 5).expand(700, 5),
        host(40, 30)[::2, 3:],
        host(90, 80).T[5:, :],
        host(3).sum(),
        host(0, 4),
        torch.view_as_complex(host(6, 2)).conj(),
        host(5, 5, dtype="int16"),
    ],
)
def test_to_gives_what_torchs_gives(tensor: torch.Tensor) -> None:
    if _C.place_of(tensor.untyped_storage().data_ptr())[0] >= 0:
        held = t.pinned(tensor.untyped_storage().nbytes() // tensor.element_size(), tensor.dtype)
        t.copy(held, torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())).wait()
        tensor = held.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    like = torch.empty_like(tensor)
    if tensor.numel() == 0:
        assert tensors._copied(t.default_engine(), tensor, CPU, False).shape == tensor.shape
        return
    out = moved(tensor)
    assert torch.equal(out, tensor) and out.dtype == tensor.dtype
    assert out.stride() == like.stride() and not out.is_conj()
    assert t.to(out, "cpu") is out


def test_to_is_differentiable() -> None:
    leaf = host(4, 4).requires_grad_()
    out = tensors._differentiable()(t.default_engine(), leaf, CPU, False)
    assert out.requires_grad and not out.is_leaf
    (out * 3).sum().backward()
    assert torch.equal(leaf.grad, torch.full((4, 4), 3.0))
    with torch.no_grad():
        assert not moved(leaf).requires_grad


def test_typed_errors() -> None:
    there = torch.zeros(8)
    for wrong, match in [
        (torch.zeros(8).to_sparse(), "sparse"),
        (torch.zeros(8, device="meta"), "meta"),
        (torch.zeros(8, dtype=torch.complex64).conj(), "resolve_conj"),
        (torch.zeros(8, dtype=torch.int32), "converts nothing"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=match):
            t.copy(there, wrong)
    with pytest.raises(errors.InvalidArgument, match="requires grad"):
        t.copy(torch.zeros(8, requires_grad=True), host(8))
    with torch.no_grad():
        t.copy(torch.zeros(8, requires_grad=True), host(8)).wait()
    with pytest.raises(errors.InvalidArgument, match="expanded"):
        t.copy(torch.zeros(1).expand(8), host(16)[::2])
