"""A region that glake's own headroom keeps from coming back: the error says so, and its advice is
right."""

import glake

MIB = 1 << 20
with glake.region("weights"):
    kept = glake.empty(100 * MIB)
glake.pause("weights")
glake.headroom("200MiB")
try:
    glake.resume("weights")
except glake.OutOfMemory as error:
    text = str(error)
else:
    raise AssertionError("100 MiB beside a headroom of 200 MiB in 256 MiB")
for part in (
    "reports 256.00 MiB free, of which 200.00 MiB are headroom for others",
    "lower the headroom to 156.00 MiB (glake.headroom, GLAKE_HEADROOM)",
):
    assert part in text, text
assert "has no more" not in text and "end what else" not in text, text
glake.headroom("156MiB")
glake.resume("weights")
