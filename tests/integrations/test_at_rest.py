"""A hook that a job does not use costs it no driver call; instructions: benchmarks/integrations."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("name", ["cupy", "fsdp2", "memory_saver", "vllm"])
def test_a_hook_at_rest_adds_no_driver_call(program, name) -> None:
    told = json.loads(program("at_rest", "20", name).stdout.splitlines()[-1])
    assert told[name]["on"] == told[name]["off"]
