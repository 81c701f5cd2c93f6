"""Child Python processes that run a module of this same glake, whatever is in the current folder.

`python -m` and `python -c` look for modules in the current folder first. `-P` forbids that, but
needs Python 3.11. So a child runs this file as a script. The script removes its own folder from the
path, loads glake from its place, and runs the module.
"""

import os
import sys


def command(module: str, *arguments: str, python: str = "") -> list[str]:
    """The command line of a child that runs `module` as `python -m` would, with `arguments`.

    `python` is the interpreter; "": this one. It finds glake without PYTHONPATH.
    """
    return [python or sys.executable, os.path.abspath(__file__), module, *arguments]


def _start() -> None:
    here = os.path.dirname(os.path.realpath(__file__))
    # Under PYTHONSAFEPATH this folder is not on the path. It is removed before any import, because
    # glake and the standard library both have a `trace`.
    if sys.path and os.path.realpath(sys.path[0]) == here:
        del sys.path[0]
    import runpy

    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, beside)
    import glake  # noqa: F401 (this one, for all that follows)

    # glake's folder comes last, so that the packages of another interpreter come first.
    del sys.path[0]
    if beside not in sys.path:
        sys.path.append(beside)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _start()
