"""What processes use: memory, shared pages counted once, and processor time. Not a number where the system does not tell."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

MEMFD = "/memfd:"
"""How the system names a file that is in memory only, such as clients' rows."""


def family(pid: int) -> list[int]:
    """A process and those that it and its children have started; itself alone where the system does not tell."""
    found, at = [pid], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            found += map(int, task.read_text().split())
        at += 1
    return found


def memory_mb(*pids: int) -> float:
    """Memory of these processes in MB: shared pages once, and files in memory whole, whether anybody has mapped them or not."""
    try:
        return (sum(map(_mapped_bytes, pids)) + _bytes_in_files(pids)) / 2**20
    except OSError:
        return math.nan


def processor_seconds(*pids: int) -> float:
    """Processor time that these processes have used so far."""
    threads = [each for pid in pids for each in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    try:
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9 if threads else math.nan
    except OSError:
        return math.nan


def _mapped_bytes(pid: int) -> int:
    """The proportional set size, without files in memory."""
    found, file_in_memory = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Pss:"):
            found += 0 if file_in_memory else int(line.split()[1])
        elif line[0] in "0123456789abcdef":  # a new mapping: addresses, rights, what it is of
            file_in_memory = MEMFD in line
    return found * 1024


def _bytes_in_files(pids: tuple[int, ...]) -> int:
    """What files without a name in memory take, of all that these processes have open; each once."""
    sizes: dict[int, int] = {}
    for fd in (each for pid in pids for each in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            if MEMFD in str(fd.readlink()):
                status = fd.stat()
                sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())
