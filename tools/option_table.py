"""Writes the C++ tables of options as a header, from the one table in glake/config.py.

    python tools/option_table.py FILE
    python tools/option_table.py --simcuda

CMake runs the first command. The file is written only if it changes. Of glake this imports only
glake.config, which needs neither torch nor the extension. An option of the core becomes a field of
`OptionValues` and a row of `each_option()`. An option of the simulator becomes a field of
`SimulatorValues` and a row of `each_simulator_option()`. `kOtherOptions` has a row for each option
that the core does not read.

The second command writes the list of the simulator's options into simcuda.h, for its readers.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SIMCUDA_HEADER = ROOT / "simcuda" / "include" / "simcuda" / "simcuda.h"
LIST_BEGINS = "/* Options, as tools/option_table.py writes them:\n"
LIST_ENDS = " */\n"
WIDTH = 100


def table() -> types.ModuleType:
    """The module glake.config, loaded without `import glake`."""
    if "glake" not in sys.modules:
        package = types.ModuleType("glake")
        package.__path__ = [str(ROOT / "glake")]
        sys.modules["glake"] = package
    from glake import config

    return config


config: Any = table()


class Field(NamedTuple):
    """How C++ holds an option: its type, the type's definition, its parser, its default."""

    type: str
    kind: str
    default: str
    definition: str = ""


def camel(name: str) -> str:
    """The name in camel case: CopyOrder for copy_order."""
    return "".join(word.capitalize() for word in name.split("_"))


def quoted(text: str) -> str:
    """A C++ string literal."""
    return json.dumps(text, ensure_ascii=False)


def choice(name: str, parse: Any, default: str) -> Field:
    """One word: an enum."""
    kind = f"{camel(name)}Kind"
    names = ", ".join(f"k{camel(word)}" for word in parse.words)
    words = ", ".join(map(quoted, parse.words))
    return Field(
        kind,
        f"Choice{{{{{words}}}}}",
        f" = {kind}::k{camel(default)}",
        f"enum class {kind} {{ {names} }};",
    )


def modes(name: str, parse: Any, default: tuple[str, ...]) -> Field:
    """A list of words: a struct with a switch for each."""
    kind = f"{camel(name)}Modes"
    fields = "".join(f"  bool {word} = {str(word in default).lower()};\n" for word in parse.words)
    any_on = f"  bool any() const {{ return {' || '.join(parse.words)}; }}\n"
    words = ", ".join(f"{{{quoted(word)}, &{kind}::{word}}}" for word in parse.words)
    return Field(
        kind, f"Modes<{kind}>{{{{{words}}}}}", "", f"struct {kind} {{\n{fields}{any_on}}};"
    )


def number(name: str, parse: Any, default: float) -> Field:
    """A number between two bounds."""
    return Field("double", f"Number{{{parse.low}, {parse.high}}}", f" = {default!r}")


def limit(name: str, parse: Any, default: Any) -> Field:
    """A fraction of a device's memory, or bytes."""
    kind = f"LimitText{{{config.LEAST_FRACTION!r}, {config.GRANULE}}}"
    fraction = default if isinstance(default, float) else 1.0
    return Field("Limit", kind, f"{{{fraction!r}, {default if isinstance(default, int) else 0}}}")


def contiguous(name: str, parse: Any, default: tuple[str, int] | None) -> Field:
    """The kind of contiguous blocks, and their least size in bytes."""
    kind, least = default or ("vmm", 0)
    start = f"{{{least}, GLAKE_CONTIGUOUS_{kind.upper()}}}"
    return Field("Contiguous", f"ContiguousText{{{config.LEAST_CONTIGUOUS}}}", start)


def size(name: str, parse: Any, default: int | None) -> Field:
    """Bytes, with a word for 0."""
    least = config.GRANULE if parse.granule else 1
    return Field("Bytes", f"Size{{{least}, {quoted(parse.nothing)}}}", f" = {default or 0}")


def flag(name: str, parse: Any, default: bool) -> Field:
    """On or off."""
    return Field("bool", "Flag{}", f" = {str(default).lower()}")


def whole(name: str, parse: Any, default: int | str | None) -> Field:
    """A whole number. If the option takes words too, C++ holds the text."""
    bounds = f"{parse.low}, {parse.high}"
    if parse.words:
        kind = f"WholeOrWord{{{bounds}, {{{', '.join(map(quoted, parse.words))}}}}}"
        return Field("std::string", kind, f" = {quoted(str(default))}")
    fits = parse.low >= -(2**31) and parse.high < 2**31
    return Field("int" if fits else "int64_t", f"Whole{{{bounds}}}", f" = {default or 0}")


def file_name(name: str, parse: Any, default: str | None) -> Field:
    """A file's name; "": none."""
    return Field(
        "std::string", f"FileName{{{parse.most}}}", f" = {quoted(default)}" if default else ""
    )


def call_times(name: str, parse: Any, default: None) -> Field:
    """Driver calls and their times."""
    return Field("std::vector<CallTime>", f"CallTimes{{{parse.most}, {parse.below!r}}}", "")


def text(name: str, parse: Any, default: str | None) -> Field:
    """Any text; "": none."""
    return Field("std::string", "AnyText{}", f" = {quoted(default)}" if default else "")


def driver(name: str, parse: Any, default: str) -> Field:
    """A driver's name or path."""
    return Field("std::string", "DriverName{}", f" = {quoted(default)}")


# How C++ holds an option, by the option's parser or the parser's class.
FIELDS: dict[Any, Callable[[str, Any, Any], Field]] = {
    config.Choice: choice,
    config.Modes: modes,
    config.Number: number,
    config.parse_limit: limit,
    config.parse_contiguous: contiguous,
    config.parse_driver: driver,
    config.parse_flag: flag,
    config.Size: size,
    config.Whole: whole,
    config.FileName: file_name,
    config.CallTimes: call_times,
    config.PATH: text,
}
# The readers whose options are fields in C++, and the prefix that is left out of a field's name.
READERS = {"core": "", "simulator": "sim_"}


def short(option: Any) -> str:
    """The name by which an option's reader knows it."""
    return str(option.name.lower().removeprefix(READERS.get(option.reader, "")))


def field(option: Any) -> Field:
    """How C++ holds an option. Raises SystemExit if its reader has no options of that kind."""
    parse = option.parse
    # The simulator skips an empty text, so it needs no OrNone. The core reads it as the default.
    if isinstance(parse, config.OrNone) and parse != config.PATH and option.reader == "simulator":
        parse = parse.parse
    make = FIELDS.get(parse) or FIELDS.get(type(parse))
    if make is None:
        raise SystemExit(
            f"glake/config.py: the {option.reader} reads no option of {option.name}'s kind; give "
            "it one in glake/csrc/base/option_kinds.h and tools/option_table.py, or another reader"
        )
    return make(short(option), parse, option.parse(option.default))


def row(option: Any, name: str) -> str:
    """The initializer of an OptionRow."""
    texts = (name, option.default, option.takes, option.meaning)
    return f"{{{', '.join(map(quoted, texts))}}}"


HEADER = """\
// Generated by tools/option_table.py from glake/config.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/option_kinds.h"

namespace glake {{

{core}
{simulator}
// Not read by the core.
inline constexpr OptionRow kOtherOptions[] = {{
{others}}};

// The row of one of those; nullptr if there is none.
inline const OptionRow* other_option(std::string_view name) {{
  for (const OptionRow& row : kOtherOptions) {{
    if (name == row.name) return &row;
  }}
  return nullptr;
}}

}}  // namespace glake
"""


VALUES = """\
{definitions}
struct {values} {{
{fields}}};

// Calls `visit` with each row, its field and how that is read.
template <typename Visit>
void {each}(Visit&& visit) {{
{visits}}}
"""


def values(reader: str, name: str, each: str) -> str:
    """The fields of one reader's options, and the function that visits them."""
    options = [option for option in config.OPTIONS.values() if option.reader == reader]
    made = [(option, short(option), field(option)) for option in options]
    return VALUES.format(
        values=name,
        each=each,
        definitions="\n".join(f"{kept.definition}\n" for *_, kept in made if kept.definition),
        fields="".join(
            f"  // {option.meaning}\n  {kept.type} {name}{kept.default};\n"
            for option, name, kept in made
        ),
        visits="".join(
            f"  visit(OptionRow{row(option, known)},\n        &{name}::{known}, {kept.kind});\n"
            for option, known, kept in made
        ),
    )


def header() -> str:
    """The header's text."""
    others = [option for option in config.OPTIONS.values() if option.reader != "core"]
    return HEADER.format(
        core=values("core", "OptionValues", "each_option"),
        simulator=values("simulator", "SimulatorValues", "each_simulator_option"),
        others="".join(f"    {row(each, each.name.lower())},\n" for each in others),
    )


def list_of_options() -> str:
    """The simulator's options, as a comment in C."""
    lines = []
    for option in config.OPTIONS.values():
        if option.reader == "simulator":
            marks = [f"default {option.default}"] if option.default else []
            marks += ["any time"] if option.any_time else []
            beside = f" ({', '.join(marks)})" if marks else ""
            lines.append(f" *   {short(option)}{beside}: {option.takes}")
            lines += textwrap.wrap(
                f"{option.meaning}. {option.more}".rstrip(),
                WIDTH,
                initial_indent=" *       ",
                subsequent_indent=" *       ",
                break_on_hyphens=False,
            )
    return LIST_BEGINS + "\n".join(lines) + "\n" + LIST_ENDS


def simcuda_header() -> str:
    """The text of simcuda.h, with the list as the table has it now."""
    before, _, rest = SIMCUDA_HEADER.read_text().partition(LIST_BEGINS)
    return before + list_of_options() + rest.partition(LIST_ENDS)[2]


def main() -> None:
    """Writes the header, if its text has changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", nargs="?", type=Path, help="write the tables there")
    which.add_argument("--simcuda", action="store_true", help="write the list in simcuda.h")
    given = parser.parse_args()
    path, made = (SIMCUDA_HEADER, simcuda_header()) if given.simcuda else (given.file, header())
    if not path.exists() or path.read_text() != made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made)


if __name__ == "__main__":
    main()
