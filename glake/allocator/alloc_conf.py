"""Applies PyTorch's own allocator settings (PYTORCH_ALLOC_CONF) to glake.

Keys that mean something to glake take effect. One warning names the others, because a setting that
is ignored silently looks as if it worked.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from glake.config import Config
from glake.errors import InvalidOption

# PyTorch reads the first one that is set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
FRACTION = "per_process_memory_fraction"
ROUNDING = "roundup_power2_divisions"  # the adapter asks PyTorch for it
# These settings ask for what glake always does: it grows segments, and holds no lock in driver
# calls.
_SAYS_AS_MUCH = {
    ("expandable_segments", "true"),
    ("backend", "native"),
    ("release_lock_on_cudamalloc", "true"),
}


@dataclass(frozen=True)
class AllocConf:
    """The settings of `variable`: each key with its value as text, lists in brackets."""

    variable: str
    given: dict[str, str]
    at_start: bool = True  # False: set by a call while the process runs

    @property
    def fraction(self) -> float | None:
        """The fraction of each device's memory that is glake's limit, unless GLAKE_LIMIT is set.
        None if it was not given at the start. Raises InvalidOption where PyTorch's own allocator
        refuses the value."""
        if not self.at_start or FRACTION not in self.given:
            return None
        value = self.given[FRACTION]
        try:
            fraction = float(value)
        except ValueError:
            fraction = math.nan
        if not 0 <= fraction <= 1:
            raise InvalidOption(
                f"{self.variable}: {FRACTION}:{value} is not a number from 0 to 1; leave it out "
                "for no limit"
            )
        return fraction

    def ignored(self, settings: Config) -> list[str]:
        """The keys that change nothing in this process."""
        found = []
        for key, value in self.given.items():
            honoured = (key, value.lower()) in _SAYS_AS_MUCH
            honoured |= key == ROUNDING
            honoured |= key == FRACTION and settings.limit is None and self.at_start
            # In this case pinned memory is PyTorch's own.
            honoured |= key.startswith("pinned_") and not settings.host_allocator
            if not honoured:
                found.append(key)
        return found

    def warn(self, settings: Config) -> None:
        """Names all ignored settings in one RuntimeWarning."""
        keys = self.ignored(settings)
        if not keys:
            return
        text = (
            f"{self.variable}: {', '.join(keys)} ha{'s' if len(keys) == 1 else 've'} no effect "
            "while glake is PyTorch's allocator (docs/pytorch.md says what takes their place)"
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:  # if warnings are errors, glake is installed all the same
            sys.stderr.write(f"RuntimeWarning: {text}\n")


def follow(settings: Config) -> None:
    """Also warns of settings that torch.cuda.memory._set_allocator_settings makes later."""
    import torch

    theirs = torch._C._accelerator_setAllocatorSettings

    def set_allocator_settings(env: str) -> None:
        theirs(env)
        AllocConf("allocator settings", parse(env), at_start=False).warn(settings)

    torch._C._accelerator_setAllocatorSettings = set_allocator_settings


def parse(text: str) -> dict[str, str]:
    """Each key with its value. Nothing is checked here, because PyTorch checks its settings."""
    pairs = re.findall(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,]*)", text)
    return {key: value.strip() for key, value in pairs}


def read(environment: Mapping[str, str]) -> AllocConf | None:
    """The settings in the environment. None: there are none."""
    for variable in VARIABLES:
        if variable in environment:
            return AllocConf(variable, parse(environment[variable]))
    return None
