"""The hooks' functions have the parameters of the packages', as tests/frameworks stored them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from glake.integrations import deepspeed, deepspeed_io, fsdp2, megatron

STORED = Path(__file__).resolve().parent / "stored"


def stored(package: str) -> dict[str, str]:
    """The text between parentheses by module and name. Of overloads it is the first's."""
    lines = (STORED / f"{package}.txt").read_text().splitlines()[1:]
    found: dict[str, str] = {}
    for line in lines:
        name, _, arguments = line.partition(" ")
        found.setdefault(name, arguments[1:-1])
    return found


def bare(function: Any, skip: int) -> str:
    """The parameters after the first `skip`, without annotations."""
    given = list(inspect.signature(function).parameters.values())[skip:]
    return ", ".join(str(each.replace(annotation=each.empty)) for each in given)


# 0.19.2 needs Python 3.12 and triton to be imported. Its signatures were read from its source.
@pytest.mark.parametrize("package", ["megatron", "megatron_0.19.2"])
def test_megatron(package: str) -> None:
    found = stored(package)
    (offload, reload, *buffers) = found
    assert offload.startswith(f"{megatron._ACTIVATIONS}:") and reload.startswith(
        f"{megatron._ACTIVATIONS}:"
    )
    assert [each.partition(":")[0] for each in buffers] == list(megatron._BUFFERS)
    # Our functions take the package's own function first, and then its object under another name.
    for name, ours in zip(
        found, (megatron._offload, megatron._reload, *[megatron._get_tensor] * 2), strict=True
    ):
        assert found[name].partition(", ")[2] == bare(ours, skip=2), name


def test_deepspeed_methods_and_accelerator() -> None:
    found = stored("deepspeed")
    for module, kind, name, _ in deepspeed.COPYING:
        assert f"deepspeed.{module}:{kind}.{name}" in found
    for kind in (deepspeed._Pinned, deepspeed._Statistics):
        for name, ours in vars(kind).items():
            if callable(ours) and name != "_bytes":
                theirs = f"deepspeed.accelerator.abstract_accelerator:DeepSpeedAccelerator.{name}"
                assert found[theirs] == bare(ours, skip=0), name


@pytest.mark.parametrize("kind", ["aio_handle", "pin_handle"])
def test_deepspeed_extensions_have_all_methods(kind: str) -> None:
    ours = getattr(deepspeed_io, kind)
    for name, arguments in stored("deepspeed").items():
        if not name.startswith(f"{kind}."):
            continue
        method = getattr(ours, name.partition(".")[2])
        given = inspect.signature(method).parameters
        words = [word.partition("=") for word in re.findall(r"[^,]+", arguments.replace(" ", ""))]
        if "async" in arguments:  # Python allows no such name, so `rest` takes it
            assert given["rest"].kind is inspect.Parameter.VAR_POSITIONAL
            words = [word for word in words if word[0] not in ("async", "file_offset")]
        required = [word for word in words if not word[1]]
        assert len(given) - 1 >= len(words), name
        for (word, _, default), parameter in zip(words, list(given.values())[1:], strict=False):
            if default:
                assert parameter.name == word, name
                assert str(parameter.default).lower() == str(eval_plain(default)).lower(), name
        if name.endswith("locked_tensor") or "buffer" in arguments:
            assert required, name


def eval_plain(text: str) -> Any:
    """The value of "1024*1024", "128" or "false"."""
    product = 1
    if text in ("true", "false"):
        return text == "true"
    for factor in text.split("*"):
        product *= int(factor)
    return product


def test_fsdp2() -> None:
    assert list(stored("fsdp2")) == [f"{fsdp2._COLLECTIVES}:DefaultAllocMixin.allocate"]


def test_kvikio_and_its_stand_in() -> None:
    """tests/transfer/packages/kvikio has the parameters of kvikio."""
    packages = Path(__file__).resolve().parents[1] / "transfer" / "packages" / "kvikio"
    for name, arguments in stored("kvikio").items():
        module, _, inside = name.partition(":")
        text = (packages / f"{module.partition('.')[2]}.py").read_text()
        words: dict[str, Any] = {}
        exec(compile(text, module, "exec"), words)
        found: Any = words
        for part in inside.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert arguments == bare(found, skip=0), name
