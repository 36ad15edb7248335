"""Folders that must be there, and files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from fedvra.core.errors import require


def require_folder(path: Path) -> None:
    """Refuse what is no folder, where runs are looked for."""
    require(path.is_dir(), f"there is no folder {path}: name one with runs in it.")


def require_run(path: Path, there: bool) -> None:
    """Refuse a folder without a run, where one is to be resumed or looked at."""
    require(there, f"there is no run in {path}: name the folder of one, in which config.yaml is.")


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file that is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step: whoever reads it, whenever, sees the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_durably(part, content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut, on systems where folders can be synchronised."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
