"""The command line on a machine with the mock device: ``python command.py run digits ...``."""

from __future__ import annotations

import loaded  # noqa: F401 - first

from fedvra.cli import main

if __name__ == "__main__":
    main()
