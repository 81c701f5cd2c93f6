"""`python -m glake` is the `glake` command."""

from glake.cli import main

if __name__ == "__main__":
    main(prog_name="glake")
