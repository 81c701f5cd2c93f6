"""A tag as a decorator, one that an exception ends, and one that is used again."""

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
again = glake.tag("again")
with again:
    pass
with again, glake.tag("inner"), again:
    nested = _C.malloc(700)
tagged, plain = make(), _C.malloc(700)
tags = {
    b["address"]: b.get("user_metadata") for s in glake.snapshot()["segments"] for b in s["blocks"]
}
assert (tags[tagged], tags[plain], tags[nested]) == ("decorated", None, "again"), tags
