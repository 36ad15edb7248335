"""``python -m fedvra``: the command ``fedvra``."""

from fedvra.cli import main

main(prog_name="fedvra")
