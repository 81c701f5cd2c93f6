"""DeepSpeed's NVMe and pinning slots by glake, without DeepSpeed: every call, and what fails."""

from __future__ import annotations


def test_calls_have_the_packages_meaning(program, tmp_path) -> None:
    assert program("deepspeed_io", tmp_path).stdout == "moved\n"


def test_the_copying_scope_takes_what_it_may(program) -> None:
    assert program("copying_scope").stdout == "copied\n"
