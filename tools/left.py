"""Prints what `make test` leaves out or shortens, and the target of make that does it in full.

python tools/left.py
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

LIST = Path(__file__).resolve().parents[1] / "tests" / "left.toml"


def main() -> None:
    """Prints the list."""
    print("== Left to others by make test (here: what of it ran):")
    for each in tomllib.loads(LIST.read_text())["left"]:
        targets = ", ".join(f"make {target}" for target in each["by"].split())
        print(f"   {targets}: {each['what']}; here {each['here']}")


if __name__ == "__main__":
    main()
