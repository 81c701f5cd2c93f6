"""Checks array interfaces, and gives item types one name each.

If NumPy has the type, the name is NumPy's ("float32", "bool", "datetime64[s]"), and torch uses the
same names. Strings, structures and types of another byte order have NumPy's typestr as their name
(">f4", "|S5"). Sources: NumPy's array interface protocol (version 3), Numba's CUDA array interface
(versions 0 to 3), PEP 3118 for the formats of buffers.
"""

import functools
import operator
from typing import Any

from glake import arguments
from glake.errors import InvalidArgument

_names: dict[Any, str] = {}  # of dtypes and formats, because asking them takes long
_MOST_NAMES = 256  # a bound, because structured types can have any number of names


def name_of(dtype: Any) -> str | None:
    """The remembered name of a dtype, if there is one."""
    return _names.get(dtype)


def named(dtype: Any, name: str) -> str:
    """Returns `name`, and remembers it for the dtype."""
    if len(_names) < _MOST_NAMES:
        _names[dtype] = name
    return name


def array_dtype(dtype: Any, typestr: str) -> str:
    """The name of an array's items, from its dtype or, if that is not NumPy's, from its typestr."""
    try:
        known = _names.get(dtype) if typestr[0] != ">" else None
    except TypeError:  # an array library's own dtype may not be hashable
        return str(getattr(dtype, "name", None) or array_dtype(None, typestr))
    if known is not None and dtype is not None:
        return known
    if typestr[0] == ">" or not (hasattr(dtype, "name") and hasattr(dtype, "itemsize")):
        import numpy

        return _numpy_name(numpy.dtype(typestr))
    # NumPy's names of strings and structures tell only their sizes.
    return named(dtype, str(dtype if typestr[1] in "SUV" else dtype.name))


def _numpy_name(dtype: Any) -> str:
    return str(dtype if dtype.kind in "SUV" or not dtype.isnative else dtype.name)


def item_bytes(dtype: Any, typestr: str) -> int:
    """The bytes of one item. Raises TypeError for a wrong typestr."""
    size = getattr(dtype, "itemsize", None)
    if isinstance(size, int):
        return size
    import numpy

    return int(numpy.dtype(typestr).itemsize)


def format_dtype(view: memoryview) -> str:
    """The name of a buffer's items. Raises InvalidArgument if they are Python objects."""
    letters = (view.format or "B").lstrip("@=<>!")
    if letters in ("B", "b", "c"):
        return "uint8"  # all three formats are bytes
    key = ("format", view.format, view.itemsize)
    if key in _names:
        return _names[key]
    import numpy

    try:
        dtype = numpy.asarray(view).dtype
    except (TypeError, ValueError, RuntimeError):  # NumPy lacks the format, such as a pointer's
        return named(key, letters)
    if dtype.hasobject:
        raise InvalidArgument("a buffer of Python objects holds pointers, not data")
    return named(key, _numpy_name(dtype))


def check(thing: Any, interface: str, facts: Any) -> None:
    """Raises InvalidArgument unless `facts` have the form of that interface."""
    wrong = _wrong(facts)
    if wrong:
        raise InvalidArgument(
            f"the {interface} of {type(thing).__name__} is none that can be read: {wrong}"
        )


def _wrong(facts: Any) -> str:
    if not isinstance(facts, dict):
        return f"it is a {type(facts).__name__}, not a dictionary"
    for key in ("shape", "typestr", "data"):
        if key not in facts:
            return f"it has no {key!r}"
    shape, data, strides = facts["shape"], facts["data"], facts.get("strides")
    if not isinstance(shape, tuple | list) or not _whole_numbers(shape, 0):
        return f"its shape is {shape!r}, not whole numbers from 0 on"
    if not isinstance(data, tuple | list) or len(data) != 2 or not _is_address(data[0]):
        return f"its data is {data!r}, not (address, whether it is read-only)"
    if strides is not None and not (
        isinstance(strides, tuple | list)
        and len(strides) == len(shape)
        and _whole_numbers(strides, -1 << 62, 1 << 62)
    ):
        return f"its strides are {strides!r}, not {len(shape)} numbers of bytes, as its shape has"
    stream, typestr = facts.get("stream"), facts["typestr"]
    if stream is not None and arguments.whole(stream) is None:
        return f"its stream is {stream!r}, neither a number nor None"
    if not isinstance(typestr, str) or not _is_type(typestr):
        return f"its typestr is {typestr!r}, not an item type such as '<f4'"
    return ""


def _whole_numbers(given: Any, least: int, most: int = 1 << 62) -> bool:
    try:
        return all(least <= operator.index(one) <= most for one in given)
    except TypeError:
        return False


def _is_address(given: Any) -> bool:
    return given is None or (hasattr(given, "__index__") and 0 <= given < 1 << 63)


@functools.lru_cache(_MOST_NAMES)
def _is_type(typestr: str) -> bool:
    import numpy

    try:
        return typestr[:1] in ("<", ">", "|", "=") and numpy.dtype(typestr) is not None
    except (TypeError, ValueError):
        return False
