"""Reads and writes checkpoint directories of `transformers`: Llama's and OPT's, as safetensors.

A family says how its config.json and ours are translated, and which of its modules is which of
ours; parameters keep their last name (weight, bias). Weights pass one at a time, so that a model
larger than a process's memory can be read into shards and written from them.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glake import extras
from glake.errors import InvalidArgument, InvalidOption, NotExported, UnknownOption
from glake.trainer.models.attention import Attention
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.families import FAMILIES, Family
from glake.trainer.models.leaf import Embedding, Leaf, Linear
from glake.trainer.models.lora import LoRA

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
    shapes = {name: own.shape for name, (_, own) in wanted.items()}
    if "head.weight" not in wanted:  # a tied model's file may hold the embedding twice
        weights = (pair for pair in weights if pair[0] != "head.weight")
    for name, value in _each_once("weights", weights, shapes):
        yield wanted[name][0], value


def _each_once(
    what: str, weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size]
) -> Iterator[tuple[str, Tensor]]:
    """The weights. InvalidArgument for one that has no shape here, another one, or comes twice,
    and for those that do not come."""
    left = dict(shapes)
    for name, value in weights:
        if name not in left:
            raise InvalidArgument(f"the model has no parameter {name!r}, or it came twice")
        shape = left.pop(name)
        if value.shape != shape:
            raise InvalidArgument(f"{name} is {list(value.shape)} there and {list(shape)} here")
        yield name, value
    if left:
        raise InvalidArgument(f"no {what} for {len(left)} parameters: {_some(left)}")


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
        model, whole = config.build(), plain.build()
    shapes = {name: own.shape for name, own in whole.named_parameters()}
    complete = _each_once("values", _merged(_loras(model), weights), shapes)
    tensors, fresh = _safetensors(), directory / ".part"
    try:
        shutil.rmtree(fresh, ignore_errors=True)  # of a write that was killed
        fresh.mkdir(parents=True)
        try:
            named = ((family.their_name(name), value) for name, value in complete)
            described["dtype"] = _write_weights(fresh, named, file_bytes)
            _write_json(fresh / "config.json", described)
            _publish(fresh, directory)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, tensors.SafetensorError) as error:
        raise NotExported(
            f"the model could not be written to {directory}: {error}. What was there is as it was; "
            "make room, or name another folder"
        ) from error


def _write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]], file_bytes: int) -> str:
    """Writes weights to as many files as they take, with an index of several; their dtype."""
    tensors = _safetensors()
    parts: list[list[str]] = []
    total, dtype = 0, ""
    for held in _in_files(weights, file_bytes):
        tensors.torch.save_file(held, folder / f"part-{len(parts)}", metadata={"format": "pt"})
        parts.append(list(held))
        total += sum(value.nbytes for value in held.values())
        dtype = str(next(iter(held.values())).dtype).removeprefix("torch.")
    if len(parts) == 1:
        (folder / "part-0").rename(folder / _WHOLE)
        return dtype
    where: dict[str, str] = {}
    for number, names in enumerate(parts):
        final = f"model-{number + 1:05}-of-{len(parts):05}.safetensors"
        (folder / f"part-{number}").rename(folder / final)
        where |= dict.fromkeys(names, final)
    _write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    return dtype


def _in_files(
    weights: Iterable[tuple[str, Tensor]], file_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """The weights by name, in groups of at most so many bytes."""
    held: dict[str, Tensor] = {}
    for name, value in weights:
        if held and sum(each.nbytes for each in held.values()) + value.nbytes > file_bytes:
            yield held
            held = {}
        # A copy: what is handed in may be a view that the next one overwrites.
        held[name] = value.detach().to("cpu", copy=True).contiguous()
    yield held


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _publish(fresh: Path, directory: Path) -> None:
    """Puts files in the place of what was there, by renames alone; config.json is the last."""
    for old in ("config.json", _INDEX, _WHOLE):  # transformers would take them for what is new
        (directory / old).unlink(missing_ok=True)
    for path in sorted(fresh.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(path, directory / path.name)


def _loras(model: torch.nn.Module) -> dict[str, LoRA]:
    return {name: each for name, each in model.named_modules() if isinstance(each, LoRA)}


def _base_parameters(model: torch.nn.Module) -> dict[str, tuple[str, Tensor]]:
    """The parameters and their names by the names that they would have without LoRA; LoRA's own
    are left out."""
    found: dict[str, tuple[str, Tensor]] = {}
    loras = _loras(model)
    for name, own in model.named_parameters():
        above, part, last = _split(name)
        if above not in loras:
            found[name] = (name, own)
        elif part == "base":
            found[f"{above}.{last}"] = (name, own)
    return found


def _split(name: str) -> tuple[str, str, str]:
    """(the module above, a module of it, the parameter's own name)."""
    place, _, last = name.rpartition(".")
    above, _, part = place.rpartition(".")
    return above, part, last


def _safetensors() -> Any:
    need = "reading or writing a checkpoint of transformers"
    extras.needed("safetensors.torch", need, "safetensors", "trainer")
    return sys.modules["safetensors"]


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
    for kind in (Linear, Embedding):
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
        try:
            described = family.write(plain)
            differs = list(plain.diff(_plain(family.read(described))))
        except UnknownOption:
            differs = ["its parts"]
        if not differs:
            return family, described
        reasons.append(f"{family.kind} differs in {_some(differs)}")
    raise InvalidOption(f"this model has no form in transformers: {'; '.join(reasons)}")


def _merged(
    loras: Mapping[str, LoRA], weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Weights, each with base + scale * up @ down where LoRA stands."""
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, value in weights:
        above, part, last = _split(name)
        if above not in loras:
            yield name, value
        elif last == "bias":
            yield f"{above}.bias", value
        else:
            parts = waiting.setdefault(above, {})
            parts[part] = value
            if len(parts) == 3:
                del waiting[above]
                change = parts["up"].float() @ parts["down"].float() * loras[above].scale
                yield f"{above}.weight", (parts["base"].float() + change).to(parts["base"].dtype)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
