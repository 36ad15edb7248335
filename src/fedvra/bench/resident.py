"""How much memory processes use, shared pages counted once."""

from __future__ import annotations

from pathlib import Path


def pss_mb(*pids: int) -> float:
    """Proportional set size in MB over these processes: shared pages are divided among those who share them."""
    return sum(_pss_kb(pid) for pid in pids) / 1024


def _pss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
