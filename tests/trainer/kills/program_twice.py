"""Trains twice in one process under torchrun, as a search over options does.

Arguments: TEXT PATH=VALUE...
"""

from __future__ import annotations

import sys

from glake.trainer.__main__ import configured
from glake.trainer.loop import train

if __name__ == "__main__":
    text, *changes = sys.argv[1:]
    given = (*changes, "log.progress=false")
    first, second = (train(configured("gpt-tiny", text, 2, None, given)).loss for _ in range(2))
    assert first == second, (first, second)
