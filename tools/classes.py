"""Checks rules for the classes of glake/csrc and of simcuda; `make lint` runs it.

    python tools/classes.py [--list]

A class has at most 40 methods. A header has one class, with the structs that it gives and takes.
The methods of a class are in one .cpp. They are declared before its data. There is no const_cast,
and no constructor that takes an object of its own class and other arguments. --list prints every
class with the number of its methods. The checks know this code's own style, not all of C++.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "glake" / "csrc", ROOT / "simcuda")
MOST_METHODS = 40  # of a class, without those that override a method of its base
# Exceptions that may stay, each with its reason.
MAY = {
    "glake/csrc/driver/driver.h: Driver": "a method a driver call, and no state to divide",
    "glake/csrc/torch/numbers/generators.h: classes": "a twin, and what alone uses it",
}


class Class(NamedTuple):
    """One class or struct with a body."""

    file: Path
    kind: str
    name: str
    methods: list[str]
    data_first: str  # a data member that is declared before a method, or ""
    copies: str  # a constructor that takes an object of the class and other arguments, or ""
    nested: bool


def code_of(text: str) -> str:
    """The text without comments, strings and preprocessor lines."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', '""', text)
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    return re.sub(
        r"//[^\n]*|/\*(?:.|\n)*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", " ", text
    )


def closing(code: str, at: int) -> int:
    """The place where the bracket that opens at `at` is closed."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "{(") - (code[i] in "})")
        if depth == 0:
            return i
    raise ValueError(f"a bracket is not closed: {code[at : at + 60]!r}")


HEAD = re.compile(
    r"(?<!enum )\b(class|struct|union)\s+(?:alignas\([^)]*\)\s*)?(?:\[\[\w+\]\]\s*)?"
    r"([\w:]+)(?:\s+final)?\s*(?::[^:;{}()][^;{}]*)?\{"
)


def members(body: str) -> Iterator[str]:
    """The declarations in a class's body, without the bodies of functions and nested classes."""
    at, start = 0, 0
    while at < len(body):
        if body[at] == "(":
            at = closing(body, at)
        elif body[at] == "{":
            end = closing(body, at)
            declaration = body[start:at]
            rest = body[end + 1 :].lstrip()
            if "=" in declaration and "operator" not in declaration and ")" not in declaration:
                at = body.index(";", end)  # the value of a constant or member
            elif rest.startswith((";", ",")) or re.match(r"\w+\s*(=|;|\{)", rest):
                at = end + 1 + (len(body[end + 1 :]) - len(rest))
                at = at + rest.index(";") if ";" in rest else len(body)
            elif re.search(r"\)\s*(const)?\s*(noexcept)?\s*:(?!:)", declaration) and re.match(
                r"[,{]", rest
            ):
                at = end  # a constructor's initialiser; its body follows
                at += 1
                continue
            else:
                at = end
            yield declaration
            start = at + 1
        elif body[at] == ";":
            yield body[start:at]
            start = at + 1
        at += 1


def is_method(declaration: str) -> str:
    """The name of the declared method, or "" for anything else."""
    declaration = re.sub(r"\b(public|private|protected)\s*:(?!:)", " ", declaration).strip()
    declaration = re.sub(r"\b(alignas|decltype|noexcept|explicit)\s*\([^()]*\)", " ", declaration)
    if (
        not declaration
        or re.match(r"(using|typedef|friend|static_assert|enum|class|struct|union)\b", declaration)
        or (
            re.match(r"template\s*<", declaration) and re.search(r"\b(friend|using)\b", declaration)
        )
    ):
        return ""
    declaration = re.sub(r"\[[^\]]*\]", " ", declaration)
    while re.search(r"<[^<>]*>", declaration) and "operator" not in declaration:
        declaration = re.sub(r"<[^<>]*>", " ", declaration)
    found = re.match(r"[^=(]*?(~?\w+|operator\s*(?:\(\)|[^\s(]+|\w+))\s*\(", declaration)
    if found is None:
        return ""
    after = declaration[found.end() :]
    # A pointer to a function: `int (*call)(int)`.
    if after.lstrip().startswith("*"):
        return ""
    return found[1]


def is_data(declaration: str) -> str:
    """The name of the declared non-static data member, or ""."""
    declaration = re.sub(r"\b(public|private|protected)\s*:(?!:)", " ", declaration).strip()
    if not declaration or re.match(
        r"(using|typedef|friend|static_assert|enum|class|struct|union|static|template|constexpr)\b",
        declaration,
    ):
        return ""
    return re.split(r"[={\[]", declaration)[0].split()[-1]


def classes(path: Path) -> Iterator[Class]:
    """The classes of one file, in order."""
    code = code_of(path.read_text())
    ends: list[int] = []
    for head in HEAD.finditer(code):
        ends = [end for end in ends if end > head.start()]
        end = closing(code, head.end() - 1)
        body = code[head.end() : end]
        methods: list[str] = []
        data = data_first = copies = ""
        own = head[2].split("::")[-1]
        for declaration in members(body):
            if method := is_method(declaration):
                given = re.search(r"= (delete|default)\b", declaration)
                if given is None and not re.search(
                    r"\b(override|GLAKE_OVERRIDE_\w+)\b", declaration
                ):
                    methods.append(method)
                if given is None and data and not data_first:
                    data_first = f"{data} before {method}"
                if method == own and re.search(
                    rf"\(\s*(?:const\s+)?{own}\s*&\s*\w*\s*,", declaration
                ):
                    copies = " ".join(declaration.split())
            elif name := is_data(declaration):
                data = data or name
        yield Class(path, head[1], head[2], methods, data_first, copies, bool(ends))
        ends.append(end)


def defined(code: str) -> set[str]:
    """The names of the classes whose methods a .cpp defines, outside of their bodies."""
    names: set[str] = set()
    for line in re.findall(r"^(?![ \t}#])([^\n;{}(]*)\(", code, flags=re.M):
        if " = " in line:  # the value of a constant
            continue
        name = re.split(r"[\s*&]+", line.strip())[-1]
        names.update(re.sub(r"<[^<>]*>", "", name).split("::")[:-1])
    return names


def divided(found: dict[Path, list[Class]], codes: dict[Path, str]) -> Iterator[str]:
    """The classes whose methods are defined in more than one .cpp."""
    headers: dict[str, list[Path]] = {}
    for path, there in found.items():
        for each in there:
            if path.suffix == ".h" and not each.nested:
                headers.setdefault(each.name, []).append(path)
    places: dict[tuple[Path, str], list[str]] = {}
    for path in found:
        if path.suffix != ".cpp":
            continue
        own = {each.name for each in found[path]}
        for name in sorted(defined(codes[path]) - own):
            # If several classes have the name, the class whose header is nearest counts.
            nearest = sorted(
                headers.get(name, []), key=lambda at: os.path.relpath(at, path.parent).count("/")
            )
            if nearest:
                places.setdefault((nearest[0], name), []).append(path.name)
    for (header, name), files in sorted(places.items()):
        if len(files) > 1:
            yield f"{shown(header)}: {name} is in {', '.join(files)}"


def shown(path: Path) -> str:
    """The path as messages name it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def wrong_in(path: Path, found: list[Class], code: str) -> Iterator[str]:
    """A line for each break of a rule in one file."""
    name = shown(path)
    if "const_cast" in code:
        yield f"{name}: const_cast"
    for each in found:
        if len(each.methods) > MOST_METHODS:
            yield f"{name}: {each.name} has {len(each.methods)} methods"
        if each.data_first and each.kind == "class":
            yield f"{name}: {each.name}: {each.data_first}"
        if each.copies:
            yield f"{name}: {each.copies} copies and does more"
    outer = [each.name for each in found if each.kind == "class" and not each.nested]
    if path.suffix == ".h" and len(outer) > 1:
        yield f"{name}: classes {', '.join(outer)}"


def main(arguments: list[str] | None = None) -> int:
    """Prints each break of a rule and each unused entry of MAY; exit code 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    paths = sorted(
        path for source in SOURCES for path in source.rglob("*") if path.suffix in (".h", ".cpp")
    )
    codes = {path: code_of(path.read_text()) for path in paths}
    found = {path: list(classes(path)) for path in paths}
    wrong: list[str] = []
    for path in paths:
        if options.list:
            for each in found[path]:
                print(f"{shown(path)}: {each.kind} {each.name}: {len(each.methods)}")
        wrong += wrong_in(path, found[path], codes[path])
    wrong += divided(found, codes)
    unused = [may for may in MAY if not any(line.startswith(may) for line in wrong)]
    wrong = [line for line in wrong if not line.startswith(tuple(MAY))]
    wrong += [f"MAY has what is not there: {may}" for may in unused]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
