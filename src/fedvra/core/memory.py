"""How much memory there is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch


def available_memory() -> int:
    """Bytes: MemAvailable, or a container's limit where that is less; all there is where neither can be read.

    Where that cannot be known either (Windows), 8 GB.
    """
    found = []
    with suppress(AttributeError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=8 << 30)


def available_on(device: torch.device) -> int:
    """Bytes that an accelerator has free now."""
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free)
