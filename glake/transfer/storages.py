"""Groups tensors by the storage that they share, because all tensors of a storage move together."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from glake.errors import InvalidArgument

GROUP = 256 << 20  # bytes of a group: its GPU memory is free while the next group is copied


class Storage:
    """A storage, and those of the given tensors that are views of it."""

    def __init__(self, tensor: Any) -> None:
        """The storage of `tensor`. The tensor itself must still be added."""
        storage = tensor.untyped_storage()
        self.address, self.bytes, self.device = storage.data_ptr(), storage.nbytes(), tensor.device
        self._storage = storage
        self.tensors: list[Any] = []

    def flat(self) -> Any:
        """All bytes of the storage as one tensor."""
        import torch

        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(self._storage)

    def rebase(self, flat: Any) -> Callable[[], None]:
        """Makes the tensors views of `flat`. Returns a function that undoes this."""
        import torch

        storage = flat.untyped_storage()
        before = [(weakref.ref(tensor), tensor.data) for tensor in self.tensors]
        with torch.inference_mode(False):  # else no pass through them could be recorded any more
            for tensor in self.tensors:
                view = torch.empty(0, dtype=tensor.dtype, device=flat.device)
                view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
                view = view.conj() if tensor.is_conj() else view
                tensor.data = view._neg_view() if tensor.is_neg() else view

        def undo() -> None:
            for reference, data in before:
                tensor = reference()
                if tensor is not None:
                    tensor.data = data

        return undo


def tensors_in(things: Any) -> Iterator[Any]:
    """The tensors of a module (parameters and buffers), a mapping or an iterable, at any depth.

    Of a tensor that wraps others (DTensor) it takes the inner ones. Raises InvalidArgument for
    anything else, and for a parameter that wraps others. FSDP2 has further views of the memory of
    such a parameter. These would stay on the GPU, and the job would train them.
    """
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if isinstance(things, torch.Tensor):
        if not is_traceable_wrapper_subclass(things):
            yield things
            return
        if isinstance(things, torch.nn.Parameter):
            raise InvalidArgument(
                f"a parameter is a {type(things).__name__}, whose memory others hold too: it "
                "cannot be moved here. FSDP2 moves parameters itself (CPUOffloadPolicy), "
                "offload_optimizer() moves an optimizer's state, glake.pause() a whole region"
            )
        inside = (getattr(things, name) for name in things.__tensor_flatten__()[0])
        for each in inside:  # a DTensor also names its mesh here
            if isinstance(each, torch.Tensor):
                yield from tensors_in(each)
    elif isinstance(things, torch.nn.Module):
        for each in (*things.parameters(), *things.buffers()):
            yield from tensors_in(each)
    elif isinstance(things, Mapping):
        yield from tensors_in(things.values())
    elif isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        for each in things:
            if not isinstance(each, (str, bytes, int, float, bool, type(None))):
                yield from tensors_in(each)
    else:  # numbers are skipped beside tensors; alone they are a mistake
        raise InvalidArgument(
            f"{type(things).__name__} holds no tensors to move: pass tensors, a module, or "
            "lists or dicts of them"
        )


def storages_of(things: Any) -> list[Storage]:
    """The storages of the strided tensors in `things`, each once."""
    import torch

    found: dict[int, Storage] = {}
    seen: set[int] = set()
    for tensor in tensors_in(things):
        if id(tensor) in seen or tensor.layout is not torch.strided:
            continue
        seen.add(id(tensor))
        if tensor.is_quantized:
            raise InvalidArgument(
                f"a quantized tensor ({tensor.dtype}) has a scale beside its bytes, which does not "
                "move with them: pass its int_repr()"
            )
        key = tensor.untyped_storage()._cdata
        found.setdefault(key, Storage(tensor)).tensors.append(tensor)
    return list(found.values())


def require_own_parameters(storages: list[Storage]) -> None:
    """Raises InvalidArgument for a parameter that may not leave its device, because ranks would
    then train different values, or wait for ever.

    When a parameter changes its device, torch drops the node that accumulates its gradient.
    DistributedDataParallel has a hook on that node, and would wait for it for ever without a
    message. A loss of an earlier step holds the node too, but is not harmed. FSDP's parameters are
    views of a flat one, which would stay on the device.
    """
    averaged: set[int] | None = None
    for tensor in (each for one in storages for each in one.tensors):
        why = None
        if getattr(tensor, "_fsdp_flattened", False):
            why = "FullyShardedDataParallel has views of its memory, which would stay"
        elif tensor.device.type != "cpu" and tensor.requires_grad and tensor.is_leaf:
            if _gradient_is_held(tensor):
                averaged = _averaged_by_ranks() if averaged is None else averaged
            if averaged and id(tensor) in averaged:
                why = (
                    "DistributedDataParallel has a hook on its gradient, which would be lost, "
                    "and the ranks would train apart"
                )
        if why is not None:
            raise InvalidArgument(
                f"a parameter of shape {tuple(tensor.shape)} cannot leave {tensor.device}: {why}. "
                "Nothing was moved. glake.pause() moves a whole region and keeps it, "
                "offload_optimizer() moves the optimizer's state; or move the module before it is "
                "wrapped"
            )


def _averaged_by_ranks() -> set[int]:
    """The parameters of every DistributedDataParallel. An object refers to its class, so the
    collector can list the referrers of the class. This is tens of times faster than a loop over all
    objects."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    if not distributed.is_available() or not distributed.is_initialized():
        return set()
    kinds: list[Any] = [DistributedDataParallel]
    for kind in kinds:
        kinds += kind.__subclasses__()
    wrapped = [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
    return {id(parameter) for module in wrapped for parameter in module.parameters()}


def _gradient_is_held(tensor: Any) -> bool:
    """Whether other code holds the autograd node that accumulates the tensor's gradient.

    If other code holds the node, it outlives our reference. Then a mark that we leave in it is
    still there when we ask for the node again.
    """
    import torch

    def notes() -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            return tensor.view_as(tensor).grad_fn.next_functions[0][0].metadata

    notes()[_gradient_is_held] = True
    return bool(notes().pop(_gradient_is_held, False))


def groups(storages: list[Storage]) -> Iterator[list[Storage]]:
    """Groups of about GROUP bytes, each on one device."""
    group: list[Storage] = []
    size = 0
    for one in storages:
        if group and (size + one.bytes > GROUP or one.device != group[0].device):
            yield group
            group, size = [], 0
        group.append(one)
        size += one.bytes
    if group:
        yield group
