"""What processes use: memory, shared pages counted once, and processor time. Not a number where the system does not tell."""

from __future__ import annotations

import math
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and those that it and its children have started; itself alone where the system does not tell."""
    found, at = [pid], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            found += map(int, task.read_text().split())
        at += 1
    return found


def pss_mb(*pids: int) -> float:
    """Proportional set size in MB over these processes: shared pages are divided among those who share them."""
    try:
        return sum(_pss_kb(pid) for pid in pids) / 1024
    except OSError:
        return math.nan


def processor_seconds(*pids: int) -> float:
    """Processor time that these processes have used so far."""
    threads = [each for pid in pids for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    try:
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9 if threads else math.nan
    except OSError:
        return math.nan


def _pss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
