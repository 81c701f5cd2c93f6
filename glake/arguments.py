"""Checks arguments of several calls: whole numbers, sizes, texts, paths, devices."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from glake import config
from glake.errors import InvalidArgument, InvalidDevice, WrongType

# A unit behind a number. Options are stricter, as C++ reads them too.
_UNIT = re.compile(r"(?<=\d) ?([kmgt])ib$", re.IGNORECASE)


def _as_written(unit: re.Match[str]) -> str:
    return unit[1].upper() + "iB"


def type_name(value: Any) -> str:
    """The name of the value's type with its article, for texts: "an int", "a str"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def whole(value: Any) -> int | None:
    """A whole number as an int, also of NumPy or torch. None for True, False and anything else."""
    if type(value) is int:  # the fast way, for small copies
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def count(name: str, value: Any) -> int:
    """A whole number as an int. Raises WrongType for anything else."""
    number = whole(value)
    if number is None:
        raise WrongType(f"{name} is a whole number, not {value!r}")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False. Raises InvalidArgument for anything else, because "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} {value!r}: True or False")
    return value


def size(name: str, value: Any, least: int = 0) -> int:
    """Bytes, `least` or more, from a whole number or a text such as "4GiB", "4 GiB" or "4gib".

    Raises:
        WrongType: neither a number nor a text.
        InvalidArgument: fewer bytes than `least`, or no size.
    """
    if isinstance(value, str):
        try:
            return config.parse_bytes(_UNIT.sub(_as_written, value.strip()), zero=least == 0)
        except ValueError as error:
            raise InvalidArgument(f"{name} {value!r}: {error}") from None
    bytes_ = whole(value)
    if bytes_ is None:
        raise WrongType(f"{name} is bytes, or text such as '4GiB', not {value!r}")
    if bytes_ < least:
        raise InvalidArgument(f"{name} of {bytes_} bytes: {least} or more")
    return bytes_


def text(name: str, value: Any) -> str:
    """A string that UTF-8 can encode, as the core takes it.

    Raises:
        WrongType: not a string.
        InvalidArgument: a string with half a character (a lone surrogate).
    """
    if not isinstance(value, str):
        raise WrongType(f"{name} is a string, not {type_name(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} {value!r}: UTF-8 cannot encode it") from None
    return value


def c_string(name: str, value: Any) -> str:
    """A string that C can take completely, without a NUL.

    Raises:
        WrongType: not a string.
        InvalidArgument: a string with half a character, or with a NUL. C would end the string
            there.
    """
    if "\0" in text(name, value):
        raise InvalidArgument(f"{name} ends at a NUL, and {value!r} has one")
    return str(value)


def text_map(name: str, value: Any) -> None:
    """Raises WrongType unless the value is a mapping of strings to strings."""
    if not isinstance(value, Mapping):
        raise WrongType(f"{name} is a mapping, such as a dict, not {value!r}")
    for key, each in value.items():
        text(f"a key of {name}", key)
        text(f"{name}[{key!r}]", each)


def text_list(name: str, value: Any) -> None:
    """Raises WrongType unless the value is a list or tuple of strings."""
    if not isinstance(value, list | tuple):
        raise WrongType(f"{name} is a list of strings, not {value!r}")
    for each in value:
        text(f"each of {name}", each)


def function(name: str, value: Any) -> None:
    """Raises WrongType unless the value is None or can be called."""
    if value is not None and not callable(value):
        raise WrongType(f"{name} is a function, not {value!r}")


def word(name: str, value: Any, words: Collection[str | None]) -> Any:
    """One of these words. Raises InvalidArgument for anything else."""
    if not (value is None or isinstance(value, str)) or value not in words:
        shown = ", ".join(str(each) if each is None else repr(each) for each in words)
        raise InvalidArgument(f"{name} is one of {shown}, not {value!r}")
    return value


def path(name: str, value: Any) -> str:
    """A file's path, from a string or an os.PathLike. Raises WrongType for anything else."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str):
        raise WrongType(f"{name} is a path, not {type_name(value)}")
    return found


def address(value: Any) -> int:
    """An address, as tensor.data_ptr() gives it. Raises WrongType for anything else, also for
    tensors."""
    number = None if hasattr(value, "data_ptr") else whole(value)
    if number is None:
        # The value's repr is not used, because a tensor's repr reads its memory, which may be
        # paused.
        raise WrongType(f"an address, such as tensor.data_ptr(), not {type_name(value)}")
    return number


def device_number(device: Any) -> int:
    """The number of a GPU given as 1, "cuda:1", "cuda" (PyTorch's current one) or a torch.device.

    Raises:
        InvalidDevice: the value names no GPU.
    """
    number = whole(device)
    if number is not None and number >= 0:
        return number
    named = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", device) if isinstance(device, str) else None
    if named is not None:
        return int(named[1]) if named[1] else _current()
    if getattr(device, "type", None) == "cuda" and hasattr(device, "index"):
        return _current() if device.index is None else int(device.index)
    raise InvalidDevice(f'device {device!r}: a GPU is 0, "cuda:0" or torch.device("cuda:0")')


def _current() -> int:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
