"""tools/string_programs.py: which texts are programs. The samples are joined from lines here,
because the check reads this file too."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import string_programs  # noqa: E402


@pytest.mark.parametrize(
    "lines",
    [
        ("import os", "print(os.getpid())"),
        ("    import os", "    os.abort()"),
        ("for n in range(3):", "    print(n)"),
        ("x = 1", "y = x"),
        ("class X:", "    pass"),
        ("async def f():", "    await g"),
        ("def f(): return 1", ""),
        ("x = %(x)s", "print(%s)"),
        ("#include <stdio.h>", "int x"),
        ("extern const char* name(void) {", "}"),
        ("#!/bin/sh", "echo started"),
        ("for n in range(3):", "    assert n < 3", "raise SystemExit(3)"),
        ("while True:", "    break"),
        ("import {m}", "if {m}:", "    {body}"),
        ("import $m", "$m.enable()"),
        ("set -e", "cd build", "rm x"),
        ("project(x CXX)", "add_library(x SHARED x.cpp)", "if(UNIX)", "endif()"),
        ("int f(int a,", "      int b) {", "  return a + b;", "}"),
        ("struct A {", "  int x;", "};"),
        (".version 7.0", ".visible .entry k() { ret }"),
    ],
)
def test_programs_are_found(lines: tuple[str, ...]) -> None:
    several = "\n".join(lines) + "\n"
    assert string_programs.is_program(several) == (lines[-1] != "")


@pytest.mark.parametrize(
    "parts",
    [
        ("import os", " os.abort()"),
        ("int f(void) { return 1", " }"),
        ("for each in 1 2 3", " do\n  echo $each\ndone\n"),
        ("if [ -f x ]", " then\n  rm x\nfi\n"),
    ],
)
def test_one_line_of_several_statements_is_a_program(parts: tuple[str, str]) -> None:
    assert string_programs.is_program(";".join(parts))
    assert not string_programs.is_program(parts[0].partition("(")[0])


@pytest.mark.parametrize(
    "text",
    [
        "import glake",
        "print(1)\n",
        "#!/bin/sh\n",
        "\nprose, of\nseveral lines\n",
        "a 1 512 0\nf 1\n",
        '{"a": 1,\n "b": [2]}\n',
        "name\nother\n",
        "name: x\nversion: y\n",
        "to be; or not",
        "started\ndone\n",
        "if it fails,\nthen so be it\nfi\n",
        "include(what)\nnobody calls\n",
        "costs $1\nand {more}\n",
    ],
)
def test_what_is_no_program(text: str) -> None:
    assert not string_programs.is_program(text)


def found(source: str) -> list[int]:
    return [line for line, _ in string_programs.programs(ast.parse(source))]


def test_programs_are_found_in_all_kinds_of_strings() -> None:
    """Plain ones, with values, joined by +, and within calls. A docstring is no program."""
    program = r"import os\nos.abort({})\n"
    made = program.format("{name}")
    source = [
        f'"""{program}"""',
        "def f(name):",
        f'    "{program}"',
        f'    g("{program}")',
        f'    g(f"{made}")',
        '    g("import os\\n" + name + "()\\n")',
        f'    g(name + "{program}")',
        '    g("import os")',
        f'    g(b"{program}")',
        r'    g("\n".join(["import os", name + "()", "x = 1"]))',
        r'    g("import {m}\nx = {m}\n".format(m=name))',
        r'    g(Template("import $m\nx = 1\n"))',
        '    g(", ".join([name, "b"]))',
    ]
    assert found("\n".join(source)) == [4, 5, 6, 7, 9, 10, 11, 12]


def test_a_program_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("\n" + r'CODE = "import os\nos.abort()"')
    assert string_programs.main([str(file)]) == 1
    assert capsys.readouterr().out == f"{file}:2: a program in a string: import os\n"
    file.write_text('CODE = "import os"\n')
    assert string_programs.main([str(file)]) == 0


def test_an_exception_that_nothing_needs_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(string_programs.MAY, "tests/no.py: import os", "a test")
    assert string_programs.main([]) == 1
    assert capsys.readouterr().out == "MAY has what is not there: tests/no.py: import os\n"
