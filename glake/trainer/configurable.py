"""Configurable: parts that are built from typed, nested configs.

A part is a class with a nested `Config`, a dataclass of keywords. The config builds the part:

    class MLP(Configurable, nn.Module):
        class Config(Configurable.Config):
            hidden: int
            up: Linear.Config = child(Linear.Config)

        def __init__(self, config: Config, *, dim: int) -> None:
            super().__init__(config)
            self.up = config.up.build(dim, config.hidden)

    MLP.Config(hidden=256).build(dim=64)

A parent holds its children's configs, never their fields. At build it tells a child what the child
must know of its surroundings (`dim`). So to replace a part, replace its config in the parent's: no
other class changes. A config is a tree. `set`, `visit`, `diff`, `to_dict` and `save` work on the
whole tree.

Every assignment is checked against the field's annotation. A field is a config, a bool, int, float,
str or Literal, or a tuple of these. A field that may be None has the default None, because TOML
leaves a None out. A number's limits are part of its type: `heads: Count`. The principle is
AXLearn's (arXiv 2507.05411).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from typing_extensions import Self, dataclass_transform

from glake import arguments, extras, files
from glake.errors import InvalidOption, UnknownOption, WrongType
from glake.hints import did_you_mean

C = TypeVar("C", bound="Configurable.Config")
_CLASS = "class"  # the key of a dict that names the part


@dataclasses.dataclass(frozen=True)
class Within:
    """The limits of a number, as in `Annotated[float, Within(0, below=1)]`.

    `least` and `most` are ends of the range that the number may equal. `above` and `below` are ends
    that it may not equal.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def check(self, value: float) -> None:
        """Raises InvalidOption, with what is allowed, if `value` is outside."""
        if not (self.least <= value <= self.most and self.above < value < self.below):
            raise InvalidOption(f"{value!r} is out of range: take {self}")

    def __str__(self) -> str:
        ends = (
            ("{} or more", self.least),
            ("more than {}", self.above),
            ("at most {}", self.most),
            ("less than {}", self.below),
        )
        return " and ".join(text.format(end) for text, end in ends if math.isfinite(end))


Natural = Annotated[int, Within(0)]
Count = Annotated[int, Within(1)]
Width = Annotated[int, Within(1, 1 << 24)]  # of a tensor; a larger value is a mistake
Copies = Annotated[int, Within(1, 1 << 14)]  # of a module; a larger value is a mistake
NonNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(above=0)]
Share = Annotated[float, Within(0, 1)]
SharePart = Annotated[float, Within(0, below=1)]
Timeout = Annotated[float, Within(1, 1e7)]  # seconds
_INT64 = Within(-(2**63), 2**63 - 1)  # what TOML and torch know
_FLOAT32 = Within(-3e38, 3e38)


def child(kind: Callable[..., C], **fields: object) -> C:
    """The default of a field that holds a config. Each parent gets a new one.

    Args:
        kind: the config's class.
        fields: the values that differ from the class's defaults.

    Raises:
        WrongType: `kind` is no config's class.
    """
    if not (isinstance(kind, type) and issubclass(kind, Configurable.Config)):
        raise WrongType(f"kind is a config's class, not {kind!r}")
    default: Any = dataclasses.field(default_factory=functools.partial(kind, **fields))
    return default


@contextlib.contextmanager
def _told_as_failed(path: str) -> Iterator[None]:
    """Turns errors of the system into FileFailed, which names `path`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise files.failed(error, path) from None


class Configurable:
    """The base of every part. `config` is the part's own copy.

    Args:
        config: an instance of the part's `Config`, whose build() calls this.

    Raises:
        WrongType: anything else.
    """

    @dataclass_transform(kw_only_default=True)
    @dataclasses.dataclass(kw_only=True)
    class Config:
        """The base of every config. Iterate its fields with `dataclasses.fields`."""

        part: typing.ClassVar[type[Configurable]]  # what build() makes

        def __init_subclass__(cls) -> None:
            dataclasses.dataclass(kw_only=True)(cls)

        def __new__(cls, **fields: object) -> Self:
            if cls.part.abstract:
                raise InvalidOption(
                    f"{_name(cls)} is abstract: name one of its kinds by {_CLASS!r}: "
                    f"{', '.join(sorted(map(_title, _kinds(cls.part))))}"
                )
            for name in fields:
                _known(cls, name)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: object) -> None:
            kind: Any = type(self)
            _known(kind, name)
            object.__setattr__(self, name, _checked_at(name, value, _annotations(kind)[name]))

        def __delattr__(self, name: str) -> None:
            raise InvalidOption(f"{name}: an option cannot be deleted: set another value, or None")

        def build(self, *args: Any, **context: Any) -> Any:
            """Builds the part with a copy of this config. Later edits of the config do not reach
            the part."""
            return self.part(copy.deepcopy(self), *args, **context)

        def get(self, path: str) -> Any:
            """The value at a dotted path such as "model.block.attention.heads"."""
            node: Any = self
            for key in arguments.text("an option's path", path).split("."):
                if not isinstance(node, Configurable.Config):
                    raise UnknownOption(f"{path!r}: nothing named {key!r} in {node!r}")
                _known(type(node), key)
                node = getattr(node, key)
            return node

        def set(self, path: str, value: object) -> None:
            """Replaces the value at a dotted path. A dict with a "class" becomes a config."""
            self.get(path)  # raises an error that names what is missing
            before, _, last = path.rpartition(".")
            with told_of(f"{before}." if before else ""):
                setattr(self.get(before) if before else self, last, value)

        def set_text(self, path: str, text: str) -> None:
            """Sets a value that a command line gives as text. The text is TOML, or else the value
            itself. "none" unsets an option, if that is allowed."""
            reader, value = _toml_reader(), text
            if text.lower() == "none":
                with contextlib.suppress(InvalidOption):  # else "none" is an ordinary text
                    return self.set(path, None)
            with contextlib.suppress(reader.TOMLDecodeError):
                table = reader.loads(f"value = {text}")
                value = table["value"] if list(table) == ["value"] else text
            if not isinstance(value, (str, list, dict)):
                # A folder may be named 2026 or 2026-11-30, which are no texts in TOML.
                with contextlib.suppress(InvalidOption):
                    return self.set(path, value)
                with contextlib.suppress(InvalidOption):
                    return self.set(path, text)
            self.set(path, value)

        def visit(self, kind: type[Configurable.Config], function: Callable[[Any], Any]) -> Any:
            """Replaces every node of a kind by function(node), in this config and below it.

            This config itself changes. Children come before their parents. What `function` returns
            is not visited again. If it returns None, the node stays. Returns the root, which may
            have been replaced too.
            """
            if not (isinstance(kind, type) and issubclass(kind, Configurable.Config)):
                raise WrongType(f"kind is a config's class, not {kind!r}")
            for name, value in self._options():
                if isinstance(value, Configurable.Config):
                    setattr(self, name, value.visit(kind, function))
            replaced = function(self) if isinstance(self, kind) else None
            return self if replaced is None else replaced

        def unset(self) -> Iterator[tuple[str, str]]:
            """The path and type of every option that is None. TOML leaves such options out."""
            return ((path, _worded(hint)) for path, value, hint in self._leaves() if value is None)

        def _options(self) -> list[tuple[str, Any]]:
            """The name and value of each of the config's own fields."""
            return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]

        def _leaves(self) -> Iterator[tuple[str, Any, Any]]:
            """(dotted path, value, type) of every option that is no config, and of each class."""
            kind: Any = type(self)
            yield _CLASS, _title(kind.part), str
            for name, value in self._options():
                if isinstance(value, Configurable.Config):
                    yield from ((f"{name}.{path}", *leaf) for path, *leaf in value._leaves())
                else:
                    yield name, value, _annotations(kind)[name]

        def to_dict(self) -> dict[str, object]:
            """Plain dicts, tuples and scalars. Each config has its class, and None is left out."""
            plain: dict[str, object] = {_CLASS: _title(type(self).part)}
            for name, value in self._options():
                if value is not None:
                    below = isinstance(value, Configurable.Config)
                    plain[name] = value.to_dict() if below else value
            return plain

        @classmethod
        def from_dict(cls: type[C], plain: Mapping[str, object]) -> C:
            """The config that to_dict() described. It must be of this class or a subclass."""
            made: C = _checked(plain, cls)
            return made

        def save(self, path: str | Path) -> None:
            """Writes the config as TOML, whole or not at all.

            Raises:
                WrongType: no path.
                FileFailed: the file cannot be written.
            """
            place = arguments.path("a config's file", path)
            with _told_as_failed(place):
                files.write_whole(Path(place), str(self), mode=0o666)

        @classmethod
        def load(cls: type[C], path: str | Path) -> C:
            """Reads what save() wrote. Fields that are left out have their defaults.

            Raises:
                WrongType: no path.
                FileFailed: the file cannot be read.
                InvalidOption: no TOML, or not of this config.
            """
            reader = _toml_reader()
            place = arguments.path("a config's file", path)
            with told_of(f"{place}: "):
                try:
                    with _told_as_failed(place):
                        read = Path(place).read_bytes()
                    plain = reader.loads(read.decode("utf-8"))
                except (reader.TOMLDecodeError, UnicodeDecodeError) as error:
                    raise InvalidOption(f"no TOML: {error}") from None
                return cls.from_dict(plain)

        def flat(self) -> dict[str, object]:
            """Every leaf by its dotted path, with the class of each node."""
            return {path: value for path, value, _ in self._leaves() if value is not None}

        def diff(self, other: Configurable.Config) -> dict[str, tuple[object, object]]:
            """Path -> (here, there) where the two differ. None stands for a path that is
            missing."""
            if not isinstance(other, Configurable.Config):
                raise WrongType(f"other is a config, not {other!r}")
            mine, theirs = self.flat(), other.flat()
            pairs = {path: (mine.get(path), theirs.get(path)) for path in mine | theirs}
            return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}

        def __str__(self) -> str:
            writer = extras.needed("tomli_w", "writing TOML", "tomli_w", "trainer")
            return str(writer.dumps(self.to_dict()))

    abstract: typing.ClassVar[bool] = False  # True: only its subclasses can be built

    def __init__(self, config: Configurable.Config) -> None:
        super().__init__()
        if not isinstance(config, type(self).Config):
            raise WrongType(
                f"{type(self).__name__} is made of a {type(self).__name__}.Config, not of "
                f"{config!r}: call that config's build()"
            )
        self.config: Any = config  # of the part's own kind

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.abstract = abstract
        own: Any = cls.__dict__.get("Config")
        if own is None:
            names = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            own = type("Config", (cls.Config,), names)
            cls.Config = own  # type: ignore[misc]
        for base in cls.__bases__:
            if issubclass(base, Configurable) and not issubclass(own, base.Config):
                raise WrongType(f"{own.__qualname__} must be a subclass of {base.__name__}.Config")
        own.part = cls


Configurable.Config.part = Configurable


def _toml_reader() -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return extras.needed(name, "reading TOML with Python 3.10", "tomli", "trainer")


def _name(config: type) -> str:
    return config.__qualname__.removesuffix(".Config")


def _title(part: type) -> str:
    """The name of a part in `class`."""
    return f"{part.__module__}:{part.__qualname__}"


def _kinds(part: type[Configurable]) -> set[type[Configurable]]:
    """All parts that can stand for an abstract part, from the modules imported so far."""
    below = {kind for each in part.__subclasses__() for kind in _kinds(each)}
    return below if part.abstract else below | {part}


def _known(config: type, name: str) -> None:
    """Raises UnknownOption, with the nearest right name, if a config has no such field."""
    names = [field.name for field in dataclasses.fields(config)]
    if name not in names:
        raise unknown(f"{_name(config)} has no option", name, "it has", names)


def unknown(what: str, name: str, known: str, names: Iterable[str]) -> UnknownOption:
    """The error for a name that is none of `names`, with the nearest one of them."""
    names = list(names)
    listed = ", ".join(names) or "none"
    return UnknownOption(f"{what} {name!r}{did_you_mean(name, names)}; {known}: {listed}")


@contextlib.contextmanager
def told_of(place: str) -> Iterator[None]:
    """Puts the option's place before the text of an error."""
    try:
        yield
    except (InvalidOption, UnknownOption) as error:
        raise type(error)(f"{place}{error}") from None


@functools.cache
def _annotations(config: Any) -> dict[str, Any]:
    return typing.get_type_hints(config, include_extras=True)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _checked(value: Any, hint: Any) -> Any:
    """`value` as a field of this type holds it. Raises InvalidOption if it does not fit."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        checked = _checked(value, inner[0])
        inner[1].check(checked)
        return checked
    if _is_union(hint):
        return None if value is None else _checked(value, inner[0])
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in inner):
            return value
        raise InvalidOption(f"{value!r} is none of {', '.join(map(repr, inner))}")
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = inner if inner[-1] is not Ellipsis else inner[:1] * len(value)
        if len(value) != len(kinds):
            raise InvalidOption(f"{value!r} has {len(value)} entries: take {len(kinds)}")
        return tuple(map(_checked_at, range(len(kinds)), value, kinds))
    if isinstance(hint, type) and issubclass(hint, Configurable.Config):
        made = _from_dict(value, hint) if isinstance(value, Mapping) else value
        if isinstance(made, hint):
            return made
        shown = _name(type(made)) if isinstance(made, Configurable.Config) else repr(made)
        raise InvalidOption(f"{shown} is no config of a {_name(hint)}")
    if type(value) is int and hint in (int, float):
        _INT64.check(value)
        return hint(value)
    if hint in (bool, float, str) and type(value) is hint:
        return _writable(value)
    raise InvalidOption(f"{value!r} is no {_worded(hint)}")


def _worded(hint: Any) -> str:
    """A field's type as a user reads it: "list of int", without the limits of its numbers."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated or _is_union(hint):
        return _worded(inner[0])
    if origin is tuple:
        return f"list of {_worded(inner[0])}"
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    return str(getattr(hint, "__qualname__", hint)).removesuffix(".Config")


def _writable(value: Any) -> Any:
    """The value, if it means something and a file can hold it."""
    if isinstance(value, float):
        if math.isnan(value):
            raise InvalidOption("nan is no number that an option may be: take a finite one")
        _FLOAT32.check(value)
    if isinstance(value, str) and (
        "\0" in value or value != value.encode(errors="replace").decode()
    ):
        raise InvalidOption(f"{value!r} has characters that no file can hold")
    return value


def _checked_at(key: object, value: Any, hint: Any) -> Any:
    with told_of(f"{key}: "):
        return _checked(value, hint)


def _part(named: Any) -> type[Configurable]:
    """The part "module:Class". It imports modules of glake only, because a file must not run what
    it names."""
    if not isinstance(named, str) or named.count(":") != 1:
        raise InvalidOption(f"class: {named!r} is not written as 'module:Class'")
    module = named.partition(":")[0]
    if module not in sys.modules and not module.startswith("glake."):
        raise InvalidOption(f"class: {named!r}: module {module!r} must be imported first")
    try:
        part = pkgutil.resolve_name(named)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption(f"class: {named!r}: {error}") from None
    if not (isinstance(part, type) and issubclass(part, Configurable)):
        raise InvalidOption(f"class: {named!r} is no subclass of Configurable")
    return part


def _from_dict(plain: Mapping[str, Any], default: type[Configurable.Config]) -> Configurable.Config:
    """A config from a dict. Without a "class" it is the one that the field declares."""
    config = _part(plain[_CLASS]).Config if _CLASS in plain else default
    values = {key: value for key, value in plain.items() if key != _CLASS}
    for name in values:  # raises an error that names a misspelt option
        _known(config, name)
    for field in dataclasses.fields(config):
        bare = field.default is field.default_factory is dataclasses.MISSING
        if bare and field.name not in values:
            raise InvalidOption(f"{_name(config)} needs the option {field.name!r}")
    return config(**values)
