"""How much memory a run took."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path


def peak_rss_mb() -> float | None:
    """Most memory this process and its workers ever held, added up; pages they share count for each of them."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    try:
        return round(sum(_peak_kb(pid) for pid in pids if pid is not None) / 1024, 1)
    except OSError:  # no /proc: there are no workers either
        try:
            import resource
        except ImportError:  # Windows
            return None
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
