"""How much memory processes use, shared pages counted once."""

from __future__ import annotations

import math
from pathlib import Path


def pss_mb(*pids: int) -> float:
    """Proportional set size in MB over these processes: shared pages are divided among those who share them.

    Not a number where the system does not tell (not Linux).
    """
    try:
        return sum(_pss_kb(pid) for pid in pids) / 1024
    except OSError:
        return math.nan


def _pss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
