"""Numbers as text: C and Python take the same spellings with the same values, and nothing in csrc
reads or prints them by the program's locale.
"""

import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import own_python
import pytest
from own_python import output

import glake
from glake import _C, config
from glake.errors import InvalidOption

PROGRAMS = Path(__file__).parent / "programs"
CSRC = Path(glake.__file__).parent / "csrc"
LIBRARIES = [
    glake.library_path(),
    glake.library_path().with_name("libsimcuda.so"),
    Path(str(_C.__file__)),
]

HOSTILE = """
    0.9 0,9 .5 5. . .. 1..5 1.2.3 00.90 90% 0.5% 100% 100.1% 0% % 1 1.0 1.0000000000000001 1.1 0 0.0
    -1 -0 +1 --1 1e-9 1E3 1e400 0x10000000 0x1p30 inf nan infinity 1_000 1'000 1.000.000 2097152
    2097151 2097151.9 2MiB 2mib 2M 2MB 2Mi 2MiB2 1.999999MiB 0.002GiB 0.5KiB 0.3B 1B 2B 64TiB
    64.0000001TiB 65TiB 70368744177664 70368744177665 9223372036854775807 9223372036854775808 16 17
    63 64 1000 1000.0001 999.9 auto none local 70GiB 70GiB% 1.GiB .GiB 0.000000000000000000001TiB
    \u0663 \u0661MiB \uff11GiB 1\u066b5"""
SPACED = [" 1", "1 ", "1\n", "\t2GiB", "5 GiB", "2MiB\n", " ", "1\u00a0GiB"]
LONG = ["9" * 400, "0." + "0" * 400 + "1", "9" * 400 + "GiB"]
PARTS = "0 1 2 5 9 10 16 64 99 100 1000 . . .5 .25 , % KiB MiB GiB TiB B e E+ 0x + - _ n k"
NAMES = """
    limit view_budget contiguous sim_memory sim_devices sim_seed sim_complete_after sim_host_node
    sim_call_us sim_call_delay_us sim_phantom sim_machine sim_context_memory sim_pace sim_max_maps
    sim_batch_small_ns sim_dead_link headroom"""


def spellings(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    parts = [*PARTS.split(), " "]
    for _ in range(count):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.7:
            number = f"{rng.randrange(10 ** rng.randint(1, 8))}"
            number += rng.choice(["", "", f".{rng.randrange(10 ** rng.randint(1, 4))}"])
            text = number + rng.choice(["", "%", "KiB", "MiB", "GiB", "TiB", "B", text])
        yield text


def outcomes(pairs: list[tuple[str, str]]) -> list[tuple[list[object] | None, list[object] | None]]:
    said = output(PROGRAMS / "both_sides.py", said=json.dumps(pairs))
    found: list[tuple[list[object] | None, list[object] | None]] = json.loads(said)
    return found


def core_text(name: str, value: object) -> tuple[float, ...] | str:
    """A core option's value as a number, whether C or Python shows it."""
    if isinstance(value, list):  # how Python shows option contiguous
        return f"{value[0]}:{value[1]}"
    if value is None or isinstance(value, str) and (name == "contiguous" or value == "none"):
        return str(value or "none")
    assert isinstance(value, str | int | float)
    number = float(value)
    none = 1.0 if name == "limit" else 0.0 if name == "headroom" else None
    return "none" if number == none else (number,)


@pytest.mark.parametrize("name", NAMES.split())
def test_c_and_python_take_the_same_spellings(name: str) -> None:
    texts = [
        text for text in [*HOSTILE.split(), *SPACED, *LONG, *spellings(seed=14, count=1500)] if text
    ]
    if name.startswith("sim_call"):
        texts = [f"cuMemMap={text}" for text in texts] + [f"cuMemMap=1+{text}" for text in texts]
    taken = 0
    for text, (python, core) in zip(texts, outcomes([(name, t) for t in texts]), strict=True):
        assert (python is None) == (core is None), (name, text, python, core)
        if python is None or core is None:
            continue
        taken += 1
        if not name.startswith("sim_"):
            assert core_text(name, python[0]) == core_text(name, core[0]), (name, text)
    assert taken >= 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("limit", "0x10000000"),
        ("limit", "1e-9"),
        ("limit", "0,9"),
        ("sim_memory", "1e9"),
        ("view_budget", "1e2"),
        ("driver", "simm"),
        ("driver", "libcuda.so"),
        ("driver", "sim:"),
    ],
)
def test_both_refuse(name: str, text: str) -> None:
    assert outcomes([(name, text)]) == [[None, None]]


@pytest.mark.parametrize("text", ["0.0000001", "0.00001%"])
def test_a_limit_below_one_granule_of_any_device_is_refused_with_one_text(text: str) -> None:
    why = r": less than one granule of 2MiB of any device \(none has 16TiB\); it takes none, a .*"
    with pytest.raises(InvalidOption, match=why) as python:
        config.parse("limit", text)
    with pytest.raises(InvalidOption, match=why) as core:
        _C.configure("limit", text)
    said = [re.search(why, str(error.value)) for error in (python, core)]
    assert said[0] and said[1] and said[0][0] == said[1][0]


def test_a_limit_below_one_granule_of_the_device_is_an_error() -> None:
    variables = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "1GiB"}
    done = own_python.run(PROGRAMS / "one_block.py", **variables, GLAKE_LIMIT="0.001")
    assert "InvalidOption: option limit: 1.02 MiB of cuda:0's 1.00 GiB" in done.stderr
    output(PROGRAMS / "one_block.py", **variables, GLAKE_LIMIT="0.002")


# What follows the locale: readers of doubles, formats of printf for them, and <cctype>.
FORBIDDEN = re.compile(
    r"\b(?:strto(?:d|f|ld)|atof|sto(?:d|f|ld)|setprecision|setlocale|imbue|iomanip|isspace|isalpha|isalnum|isdigit|tolower|toupper)\b"
    r'|%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?L?[fFeEgGaA](?=[^a-zA-Z]|$)(?=[^\n]*")'
)


def test_the_sources_name_nothing_that_follows_the_locale() -> None:
    found = [
        f"{path.relative_to(CSRC)}:{number}: {line.strip()}"
        for path in sorted([*CSRC.rglob("*.cpp"), *CSRC.rglob("*.h")])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN.search(line.split("//")[0])
    ]
    assert found == []


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_the_libraries_call_nothing_that_follows_the_locale(library: Path) -> None:
    """In a library std::to_string(double) shows as vsnprintf, and std::stod as strtod."""
    done = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert "memcpy" in names  # nm did print names of functions
    assert not names & {"strtod", "strtof", "strtold", "atof", "vsnprintf", "__vsnprintf_chk"}
