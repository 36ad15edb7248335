"""The scripts in benchmarks/, as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = str(Path(__file__).parents[1] / "benchmarks")


def benchmark(name: str) -> ModuleType:
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)
