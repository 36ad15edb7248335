"""What is nobody else's business: files only their owner can read, and the key that seals them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedvra.core.errors import UsageError, require

MIN_KEY_BYTES = 32


@contextmanager
def private_files(folder: Path) -> Iterator[None]:
    """Make a folder (0700), and whatever is written meanwhile (0600), readable by its owner alone."""
    before = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)
        yield
    finally:
        os.umask(before)


def read_key(path: str | Path | None) -> bytes | None:
    """The secret in a file, kept apart from what it seals; None where there is no file."""
    if not path:
        return None
    try:
        key = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read ({error.strerror}).") from None
    require(
        len(key) >= MIN_KEY_BYTES,
        f"the key file {path} holds {len(key)} bytes, too few: make one with `openssl rand -out {path} 32`.",
    )
    return key
