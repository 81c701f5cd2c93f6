"""A live recording with tags, steps and a second thread."""

import threading

import glake
from glake import _C

glake.step()
with glake.tag("outer"), glake.tag("layers 0;größe\x1b" + "x" * 2000):
    tagged = _C.malloc(1000)
    other = threading.Thread(target=lambda: _C.malloc(3000))
    other.start()
    other.join()
with glake.tag("b" * 1023 + "ä"):
    _C.malloc(500)
plain = _C.malloc(2000)
glake.step()
_C.free(tagged)
_C.trace(None)
