"""Prints what glake reads and prints: timings, sizes with fractions, rates and limits.

The locale that the environment names is set before or after the import (argument).
"""

import ctypes
import json
import locale
import os
import sys
from functools import partial
from pathlib import Path


def settle():
    locale.setlocale(locale.LC_ALL, "")
    text = ctypes.create_string_buffer(20)
    ctypes.CDLL(None).snprintf(text, 20, b"%.1f", ctypes.c_double(0.5))
    assert text.value == os.environ["HALF"].encode(), text.value


if sys.argv[1] == "before":
    settle()
from glake import _C, config, simcuda  # noqa: E402
from glake.cli import main  # noqa: E402
from glake.errors import GlakeError, InvalidOption  # noqa: E402

if sys.argv[1] == "after":
    settle()
assert config.read().limit == 0.9
for text in ("0,9", "1,5GiB", "0.9,"):
    for refuses in (
        partial(_C.configure, "limit", text),
        partial(config.parse, "limit", text),
        partial(simcuda.configure, "memory", text),
    ):
        try:
            refuses()
        except InvalidOption:
            continue
        raise AssertionError(text)
_C.configure("view_budget", "2.5")
simcuda.configure("call_us", "cuMemMap=2.5+1.25")
print(json.dumps({row["name"]: row["value"] for row in _C.options()}))
print(_C.device_count(), simcuda.price_us("cuMemMap"), simcuda.price_us("cuMemCreate"))
held = _C.malloc(3 << 20)
try:
    _C.malloc(1717986918)
except GlakeError as error:
    print(error)
print(json.dumps(_C.stats(0)), simcuda.cost_us())
platforms = Path(os.environ["PLATFORMS"]).read_text()
_C.transfer_open(platforms, "hgx_h100_h200")
print(json.dumps(_C.transfer_explain(0, 1, 0, 1 << 30)))
simcuda.set_link(*next(iter(simcuda.edges()["edges"])).split(">"), 12.5)
print(json.dumps(simcuda.edges()))
for line in (
    ["info", "--json"],
    ["topo", "--preset", "gb200_tray", "--json"],
    ["topo", "--preset", "dgx1v", "--plan", "cpu", "cuda:0"],
    ["replay", os.environ["TRACE"], "--json", "--policy", "glake,native", "--capacity", "1.5GiB"],
    ["replay", os.environ["TRACE"], "--policy", "native,gmlake", "--capacity", "3MiB"],
):
    try:
        main(line, standalone_mode=False)
    except Exception as error:
        print(type(error).__name__, error)
_C.trace(os.environ["WRITTEN"])
_C.free(_C.malloc(1536))
_C.trace(None)
print(Path(os.environ["WRITTEN"]).read_text())
