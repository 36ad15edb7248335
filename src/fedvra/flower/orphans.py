"""A ClientApp ends with the SuperNode it works for.

A SuperNode starts a SuperExec, which starts a process per message. Flower has each of them look whether its parent's process id
is still in use, which it is for as long as nobody collects the dead parent: in a container without an init, forever. Who has
become an orphan sees it at once by its parent's number, which is then another.

Ending is safe at any moment: the new state is on the disk before the upload leaves, and the next message settles what counts.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

LOOK_SECONDS = 0.5
SUPEREXEC, SUPERNODE = "flower-superexec", "flower-supernode"


@cache
def end_with_supernode() -> None:
    """Watch the processes this one was started by, where they are Flower's; once per process."""
    superexec = os.getppid()
    if SUPEREXEC not in _command(superexec):
        return  # in somebody's own process: a simulation, a test
    supernode = _parent(superexec)
    watched = supernode if SUPERNODE in _command(supernode) else None  # a SuperExec started by hand has another parent

    def watch() -> None:
        while os.getppid() == superexec and (watched is None or _parent(superexec) == watched):
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="fedvra-orphans", daemon=True).start()


@cache
def end_with_parent() -> None:
    """The same for a process that is to end with the one it was forked from, whatever that is."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="fedvra-orphans", daemon=True).start()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _parent(pid: int) -> int:
    """The parent of another process; 0 where it cannot be known."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
