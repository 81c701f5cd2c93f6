"""Reads and writes checkpoint directories of `transformers`: Llama's and OPT's, as safetensors.

A family says how its config.json and ours are translated, and which of its modules is which of
ours; parameters keep their last name (weight, bias). Weights pass one at a time, so that a model
larger than a process's memory can be read into shards and written from them.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glake import extras
from glake.errors import InvalidArgument, InvalidOption, NotExported
from glake.trainer.models.attention import Attention
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.families import FAMILIES, Family
from glake.trainer.models.leaf import Embedding, Leaf, Linear
from glake.trainer.models.lora import LoRA
from glake.trainer.models.position import LearnedPosition

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


def read_config(directory: str | Path) -> Decoder.Config:
    """Our config of the model in a directory."""
    described = _described(Path(directory))
    try:
        return _family(described).read(described)
    except KeyError as error:
        raise InvalidArgument(f"{directory}: config.json lacks {error}") from None


def read_weights(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Our name and the value of each parameter, one at a time, on the CPU."""
    directory, tensors = Path(directory), _safetensors()
    family = _family(_described(directory))
    for path in _files(directory):
        try:
            with tensors.safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    if ours := family.our_name(name):
                        yield ours, file.get_tensor(name)
        except tensors.SafetensorError as error:
            raise InvalidArgument(f"{path} is damaged or cut short: {error}") from None


def matched(
    model: torch.nn.Module, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The weights by the names of the model's parameters (which may be on the meta device), each
    once. Where a projection has LoRA beside it, they are its base's. InvalidArgument."""
    wanted = _base_parameters(model)
    left = set(wanted)
    for name, value in weights:
        if name not in left:
            if name == "head.weight" and name not in wanted:
                continue  # a tied model's file may hold the embedding twice
            raise InvalidArgument(f"the model has no parameter {name!r}, or it came twice")
        own, shape = wanted[name]
        if value.shape != shape:
            raise InvalidArgument(
                f"{name} is {list(value.shape)} in the file and {list(shape)} here"
            )
        yield own, value
        left.remove(name)
    if left:
        raise InvalidArgument(f"no weights for {len(left)} parameters: {_some(left)}")


@torch.no_grad()
def load_weights(model: torch.nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copies weights into a model's parameters; each must come once, and fit."""
    parameters = dict(model.named_parameters())
    for name, value in matched(model, weights):
        parameters[name].copy_(value)


def load(directory: str | Path) -> Decoder:
    """The model in a directory, with its weights, on the current default device."""
    with torch.device("meta"):
        model: Decoder = read_config(directory).build()
    model.to_empty(device=torch.get_default_device())
    load_weights(model, read_weights(directory))
    return model


def check(directory: str | Path, config: Decoder.Config) -> None:
    """Whether write() could write such a model there, before it has been trained. InvalidOption
    where it has no form in transformers; NotExported where the folder takes no file."""
    _described_as(_plain(config))
    _safetensors()
    directory = Path(directory).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise NotExported(
            f"no model can be written to {directory}: {error.strerror}; name another folder"
        ) from None


def write(
    directory: str | Path,
    config: Decoder.Config,
    weights: Iterable[tuple[str, Tensor]],
    *,
    file_bytes: int = 5_000_000_000,
) -> None:
    """Writes a model for transformers' from_pretrained(); LoRA is merged into the weights.

    Args: weights: our names and whole parameters, as named_parameters() yields them, in any order.
    file_bytes: the most that one file of several holds, if more than one parameter does.
    A checkpoint that is there stays as it is until the new one is whole. NotExported where the
    file system refuses it; InvalidArgument, InvalidOption.
    """
    directory, plain = Path(directory).expanduser(), _plain(config)
    family, described = _described_as(plain)
    with torch.device("meta"):
        shapes = {name: tuple(own.shape) for name, own in plain.build().named_parameters()}
    tensors = _safetensors()
    fresh = directory / "config.json.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writer = _Writer(directory, family, shapes, file_bytes)
        try:
            for name, value in _merged(config, weights):
                writer.add(name, value)
            described["dtype"] = writer.prepare()
            fresh.write_text(json.dumps(described, indent=2) + "\n", "utf-8")
        except BaseException:
            writer.discard()
            fresh.unlink(missing_ok=True)
            raise
        (directory / "config.json").unlink(missing_ok=True)  # from here on there are renames alone
        writer.name_files()
        os.replace(fresh, directory / "config.json")
    except (OSError, tensors.SafetensorError) as error:
        raise NotExported(
            f"the model could not be written to {directory}: {error}. What was there is as it was; "
            "make room, or name another folder"
        ) from error


def _base_parameters(model: torch.nn.Module) -> dict[str, tuple[str, torch.Size]]:
    """The parameters' names and shapes by the names that they would have without LoRA; LoRA's own
    are left out."""
    loras = {name for name, module in model.named_modules() if isinstance(module, LoRA)}
    found = {}
    for name, own in model.named_parameters():
        place, _, last = name.rpartition(".")
        above, _, part = place.rpartition(".")
        if above not in loras:
            found[name] = (name, own.shape)
        elif part == "base":
            found[f"{above}.{last}"] = (name, own.shape)
    return found


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        need = "reading or writing a checkpoint of transformers"
        raise InvalidOption(extras.missing(need, "safetensors", "trainer", error)) from None
    return safetensors


def _described(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        described: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(f"{directory} has no config.json: no checkpoint directory") from None
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{path} is no JSON: {error}") from None
    if not isinstance(described, dict):
        raise InvalidArgument(f"{path} is no JSON object")
    return described


def _family(described: Mapping[str, Any]) -> Family:
    kind = described.get("model_type")
    for family in FAMILIES:
        if family.kind == kind:
            return family
    known = ", ".join(family.kind for family in FAMILIES)
    raise InvalidOption(f"a checkpoint of model_type {kind!r}; known are: {known}")


def _files(directory: Path) -> list[Path]:
    if (directory / _INDEX).exists():
        paths = [directory / name for name in _indexed(directory / _INDEX)]
    else:
        paths = [directory / _WHOLE]
    for path in paths:
        if not path.exists():
            raise InvalidArgument(f"{directory} has no {path.name}; weights must be safetensors")
    return paths


def _indexed(index: Path) -> list[str]:
    """The files that an index names; none lies elsewhere."""
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidArgument(f"{index} is no index of files by their tensors") from None
    for name in names:
        if Path(name).name != name:
            raise InvalidArgument(f"{index} names the file {name!r}: none but those beside it")
    return names


def _plain(config: Decoder.Config) -> Decoder.Config:
    """The config without what a checkpoint does not know of: LoRA, freezing, the start."""
    plain = copy.deepcopy(config)
    plain.visit(LoRA.Config, lambda lora: lora.base)
    plain.visit(Leaf.Config, lambda leaf: leaf.set("trainable", True))
    plain.visit(Leaf.Config, lambda leaf: leaf.set("dtype", None))
    for kind in (Linear, Embedding, LearnedPosition):
        plain.visit(kind.Config, lambda leaf: leaf.set("std", 0.02))
    plain.visit(Attention.Config, lambda attention: _without_defaults(attention, plain.dim))
    plain.loss_rows = None
    return plain


def _without_defaults(attention: Attention.Config, dim: int) -> None:
    if attention.key_value_heads == attention.heads:
        attention.key_value_heads = None
    if attention.head_dim is not None and attention.head_dim * attention.heads == dim:
        attention.head_dim = None


def _described_as(plain: Decoder.Config) -> tuple[Family, dict[str, Any]]:
    """The family that the model is of: the one whose description reads back as the same model."""
    reasons = []
    for family in FAMILIES:
        described = family.write(plain)
        differs = list(plain.diff(_plain(family.read(described)))) if described else ["its parts"]
        if not differs:
            return family, described
        reasons.append(f"{family.kind} differs in {_some(differs)}")
    raise InvalidOption(f"this model has no form in transformers: {'; '.join(reasons)}")


def _merged(
    config: Decoder.Config, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Weights, each with base + scale * up @ down where LoRA stands."""
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, value in weights:
        place, _, last = name.rpartition(".")
        above, _, part = place.rpartition(".")
        lora = _lora_at(config, above)
        if lora is None:
            yield name, value
        elif last == "bias":
            yield f"{above}.bias", value
        else:
            parts = waiting.setdefault(above, {})
            parts[part] = value
            if len(parts) == 3:
                del waiting[above]
                change = parts["up"].float() @ parts["down"].float() * (lora.alpha / lora.rank)
                yield f"{above}.weight", (parts["base"].float() + change).to(parts["base"].dtype)


def _lora_at(config: Decoder.Config, module: str) -> LoRA.Config | None:
    """The config of the LoRA that a module's path ends at."""
    steps = module.split(".")
    path = ["block", *steps[2:]] if steps[0] == "blocks" else steps
    node: Any = config
    for step in path:
        node = getattr(node, step, None)
    return node if isinstance(node, LoRA.Config) else None


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")


class _Writer:
    """Fills files in a planned order; a file is written when all its tensors are there."""

    def __init__(
        self, directory: Path, family: Family, shapes: dict[str, tuple[int, ...]], file_bytes: int
    ) -> None:
        self.directory, self.family, self.shapes = directory, family, shapes
        self.file_bytes = file_bytes
        self.missing = set(shapes)
        self.held: dict[str, Tensor] = {}
        self.bytes = 0
        self.parts: list[tuple[Path, list[str]]] = []
        self.total = 0
        self.dtype = ""

    def add(self, name: str, value: Tensor) -> None:
        if name not in self.missing:
            raise InvalidArgument(f"{name!r} is no parameter of this model, or came twice")
        if tuple(value.shape) != self.shapes[name]:
            raise InvalidArgument(
                f"{name} is {list(value.shape)}; this model's is {list(self.shapes[name])}"
            )
        size = value.numel() * value.element_size()
        if self.held and self.bytes + size > self.file_bytes:
            self._flush()
        self.missing.remove(name)
        # A copy: what is handed in may be a view that the next one overwrites.
        kept = value.detach().to("cpu", copy=True).contiguous()
        self.held[self.family.their_name(name)] = kept
        self.bytes, self.total = self.bytes + size, self.total + size
        self.dtype = str(value.dtype).removeprefix("torch.")

    def _flush(self) -> None:
        path = self.directory / f"part-{len(self.parts)}.safetensors"
        self.parts.append((path, list(self.held)))  # before: a write that fails leaves a file too
        _safetensors().torch.save_file(self.held, path, metadata={"format": "pt"})
        self.held, self.bytes = {}, 0

    def discard(self) -> None:
        """Removes what was written."""
        for path in (*(path for path, _ in self.parts), self._index_part):
            path.unlink(missing_ok=True)

    @property
    def _index_part(self) -> Path:
        return self.directory / f"{_INDEX}.part"

    def prepare(self) -> str:
        """Writes all that there is to write; returns the dtype of the weights."""
        if self.missing:
            raise InvalidArgument(
                f"no values for {len(self.missing)} parameters: {_some(self.missing)}"
            )
        self._flush()
        if len(self.parts) > 1:
            where: dict[str, str] = {}
            for number, (_, names) in enumerate(self.parts, 1):
                where.update(dict.fromkeys(names, self._final(number)))
            index = {"metadata": {"total_size": self.total}, "weight_map": where}
            self._index_part.write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        return self.dtype

    def _final(self, number: int) -> str:
        return f"model-{number:05}-of-{len(self.parts):05}.safetensors"

    def name_files(self) -> None:
        """Gives the files the names that transformers looks for."""
        for old in (_INDEX, _WHOLE):  # it would take either for what is written now
            (self.directory / old).unlink(missing_ok=True)
        if len(self.parts) == 1:
            os.replace(self.parts[0][0], self.directory / _WHOLE)
            return
        for number, (path, _) in enumerate(self.parts, 1):
            os.replace(path, self.directory / self._final(number))
        os.replace(self._index_part, self.directory / _INDEX)
