"""A hook that a job does not use costs it no driver call.

benchmarks/integrations counts its instructions.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "integrations" / "at_rest.py"
# Made-up text in the format that callgrind writes at a client request and at the program's end.
STRETCH = """# callgrind format
version: 1
part: {part}
desc: I1 cache:
desc: Timerange: Basic block 0 - 4021
desc: Trigger: Client Request: {name}
events: Ir
summary: {total}

fn=(1) step
4 {total}

totals: {total}
"""
END = "# callgrind format\ndesc: Trigger: Program termination\nevents: Ir\ntotals: 7\n"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("at_rest_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cupy", "fsdp2", "memory_saver", "vllm"])
def test_a_hook_at_rest_adds_no_driver_call(program, name) -> None:
    told = json.loads(program("at_rest", "20", name).stdout.splitlines()[-1])
    assert told[name]["on"] == told[name]["off"]


def test_instructions_of_each_stretch_are_read(benchmark, tmp_path) -> None:
    for part, (name, total) in enumerate([("vllm off", 26695626), ("vllm on", 26715626)], 1):
        text = STRETCH.format(part=part, name=name, total=total)
        (tmp_path / f"counts.{part}").write_text(text)
    (tmp_path / "counts").write_text(END)
    (tmp_path / "counts.3").write_text(END)
    found = benchmark.instructions(tmp_path)
    assert found == {"vllm off": 26695626, "vllm on": 26715626}
    told = {"vllm": {"off": [40, found["vllm off"]], "on": [60, found["vllm on"]]}}
    (row,) = benchmark.rows(told, steps=20)
    words = row.split()
    assert words == ["vllm", "2.00", "->", "3.00", "1334781", "->", "1335781", "0.075%"]
    (tmp_path / "counts.4").write_text("desc: Trigger: Client Request: cut short\n")
    with pytest.raises(ValueError, match="no total of 'cut short'"):
        benchmark.instructions(tmp_path)
