"""A tag as a decorator, and one that an exception ends."""

import glake
from glake import _C


@glake.tag("decorated")
def make():
    return _C.malloc(700)


try:
    with glake.tag("raised"):
        raise KeyError
except KeyError:
    pass
tagged, plain = make(), _C.malloc(700)
tags = {
    b["address"]: b.get("user_metadata") for s in glake.snapshot()["segments"] for b in s["blocks"]
}
assert (tags[tagged], tags[plain]) == ("decorated", None), tags
