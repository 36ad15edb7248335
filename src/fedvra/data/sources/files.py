"""Files with a known digest: checked before they are used."""

from __future__ import annotations

import hashlib
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
