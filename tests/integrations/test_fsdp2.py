"""FSDP2's hook in jobs that use regions."""


def test_buffers_are_in_no_region(program) -> None:
    assert program("fsdp2_in_region").stdout.endswith("stepped\n")
