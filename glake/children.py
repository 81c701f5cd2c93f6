"""Child Python processes that run a module of this same glake, whatever the current folder holds.

`python -m` and `python -c` look for modules in the current folder before all others, and `-P`,
which forbids it, is Python 3.11's. So a child runs this file as a script: it takes its own folder
off the path, loads glake from where it lies, and runs the module.
"""

import os
import sys


def command(module: str, *arguments: str, python: str = "") -> list[str]:
    """The command line of a child that runs `module` as `python -m` would, with `arguments`.

    `python` is the interpreter, "" this one. Its environment needs no PYTHONPATH for glake's sake.
    """
    return [python or sys.executable, os.path.abspath(__file__), module, *arguments]


def _start() -> None:
    here = os.path.dirname(os.path.realpath(__file__))
    # The folder is not on the path under PYTHONSAFEPATH. It is removed before any import, because
    # glake has a `trace`, and so has the standard library.
    if sys.path and os.path.realpath(sys.path[0]) == here:
        del sys.path[0]
    import runpy

    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, beside)
    import glake  # noqa: F401 (this one, for all that follows)

    # glake's folder then comes last, because another interpreter's own packages come first.
    del sys.path[0]
    if beside not in sys.path:
        sys.path.append(beside)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _start()
