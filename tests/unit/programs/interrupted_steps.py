"""Steps of test-all, the second of which waits to be interrupted (argument: a folder)."""

import pathlib
import sys

import test_all as t

here = pathlib.Path(sys.argv[1])
t.ROOT = here
steps = (
    t.Step("done", "true"),
    t.Step("long", "echo $$ >pid; sleep 60; true"),
    t.Step("after", "true"),
)
sys.exit(t.main([], steps, here / "a.log"))
