"""The simulated GPUs of a dry run: their number, their model, and the memory that CUDA itself
takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glake import arguments, outside
from glake.config import GRANULE
from glake.errors import DryRunError, InvalidArgument
from glake.platform_file import load_platforms

GIB = 1 << 30
MOST_GPUS = 64


@dataclass(frozen=True)
class Model:
    """A GPU model: its memory in bytes, and the platform that gives its links and attributes."""

    name: str
    memory_bytes: int
    platform: str


def _model(name: str, gib: float, platform: str) -> Model:
    return Model(name, int(gib * GIB) // GRANULE * GRANULE, platform)


def _sold_as(name: str, gb: float, platform: str) -> Model:
    return _model(name, gb * 1e9 / GIB, platform)


# The memory of each model. Rows of _model() have the total that CUDA reports, in GiB, from known
# texts of out-of-memory errors ("GPU 0 has a total capacity of 79.11 GiB"). Rows of _sold_as() have
# the vendor's figure in GB (1e9 bytes), because no such text is known. The device has more.
MODELS = {
    model.name: model
    for model in (
        _model("H100", 79.11, "hgx_h100_h200"),
        _model("A100", 79.10, "dgx_a100"),
        _model("A100-40", 39.50, "dgx_a100"),
        _model("V100", 31.74, "dgx1v"),
        _model("L40S", 44.52, "a10_l40s_x8"),
        _sold_as("H200", 141, "hgx_h100_h200"),
        _sold_as("H800", 80, "hgx_h800"),
        _sold_as("H20", 96, "hgx_h20"),
        _sold_as("B300", 288, "hgx_b300"),
        _sold_as("GB200", 186, "gb200_tray"),
        _sold_as("A40", 48, "a40x8_bridged"),
        _sold_as("A10", 24, "a10_l40s_x8"),
        _sold_as("RTXPRO6000", 96, "rtxpro6000_gen5"),
    )
}


@dataclass(frozen=True)
class Machine:
    """The machine that is simulated: `gpus` devices of `memory_bytes` each, on a platform."""

    gpus: int
    model: str
    memory_bytes: int
    platform: str


def machine(gpus: str = "1", memory: str | int | None = None) -> Machine:
    """The machine that "4", "H100" or "8xH100" describes (default model: H100). `memory` replaces
    the model's memory size.

    `memory` is bytes, or a text such as "62.6GiB". It is the device's total, of which CUDA itself
    takes a part. Raises DryRunError for a text that cannot be read, an unknown model, or more GPUs
    than the model's platform has.
    """
    match = re.fullmatch(r"(?:(\d+)(?:[xX](?=.)|$))?(.*)", gpus.strip())
    count, name = (match[1], match[2]) if match else (None, gpus)
    found = {known.upper(): model for known, model in MODELS.items()}.get(name.upper() or "H100")
    if found is None or (name == "" and count is None):
        raise DryRunError(
            f"gpus {gpus!r}: give a count, a model or both, such as 4, A100 or 8xH100; models: "
            f"{', '.join(MODELS)} (any other: --memory with its bytes)"
        )
    number = int(count or 1)
    room = load_platforms()[found.platform].gpus
    if not 1 <= number <= room:
        raise DryRunError(f"gpus {gpus!r}: a machine of {found.name} has 1 to {room} of them")
    total = found.memory_bytes if memory is None else parse_size(memory, "memory")
    total = total // GRANULE * GRANULE
    if total < 64 << 20:
        raise DryRunError(f"memory {memory!r}: a simulated GPU has at least 64MiB")
    return Machine(number, found.name, total, found.platform)


def parse_size(given: str | int, what: str) -> int:
    """Bytes from a whole number or a text such as "62.6GiB". Raises DryRunError, which names the
    value."""
    try:
        return arguments.size(what, given)
    except InvalidArgument as error:
        raise DryRunError(f'{error}; give bytes or "62.6GiB"') from None


def outside_bytes(given: str | int | None, ranks: int) -> int:
    """The bytes that each rank's process takes of its GPU outside the allocator.

    `given` is 0 for nothing, a size, or None for the estimate (glake.outside).
    """
    if given is not None:
        return -(-parse_size(given, "outside") // GRANULE) * GRANULE
    return outside.estimate(ranks)
