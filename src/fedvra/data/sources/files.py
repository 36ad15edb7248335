"""Files with a known digest: checked before they are used, written so that nobody ever sees half of one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A published file, uncompressed: its name, length in bytes and SHA-256."""

    name: str
    size: int
    sha256: str

    def matches(self, content: bytes) -> bool:
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def stored_in(self, folder: Path) -> bool:
        """Whether a file of this name and length is there: cheap, for every start of a run."""
        try:
            return (folder / self.name).stat().st_size == self.size
        except OSError:
            return False

    def intact_in(self, folder: Path) -> bool:
        """Whether it is there with the right digest."""
        if not self.stored_in(folder):
            return False
        with (folder / self.name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, on systems where folders can be synchronised."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
