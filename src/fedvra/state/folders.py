"""Folders that runs write to: which may be used, and by one process at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from fedvra.core.errors import UsageError, require

LOCK = ".lock"
PART = ".*.part"
"""What a process that was killed while it replaced a file leaves behind: see ``core.files``."""


def require_unused(path: Path, beginnings: Collection[str] = ()) -> None:
    """Refuse an output folder that holds anything or cannot be written to. Writes nothing itself.

    Files named ``beginnings`` do not count: a process that was killed left them before there was anything to continue.
    """
    try:
        require(not path.exists() or path.is_dir(), f"{path} is a file: name a folder to write to with --out.")
        require(
            not path.is_dir() or all(name in {LOCK, *beginnings} or fnmatch(name, PART) for name in os.listdir(path)),
            f"the folder {path} is already in use: name another with --out, or continue what is in it with "
            f"`fedvra resume {path}`.",
        )
    except OSError as error:
        raise unwritable(path, error) from None
    require_writable(path, "--out")


def require_writable(path: Path, option: str) -> None:
    """Refuse a folder that could not be made or written to. Writes nothing itself."""
    ancestor = next(place for place in (path, *path.absolute().parents) if place.exists())
    require(
        ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK),
        f"{path} cannot be made because {ancestor} is not a folder one may write to: name another with {option}.",
    )


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def next_free(path: Path) -> Path:
    """``path`` if nothing is there, else the first of path-2, path-3, ... where nothing is."""
    numbered = (path.with_name(f"{path.name}-{k}") for k in itertools.count(2))
    return next(place for place in itertools.chain([path], numbered) if not place.exists())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have a folder to ourselves; refuses one that another process has. The system lets go of it however a process ends."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        with _lock_without_fcntl(path):
            yield
    else:
        with _record_lock(path):
            yield


@contextmanager
def _record_lock(path: Path) -> Iterator[None]:
    """Rather than ``flock``: forked workers do not inherit it, so the folder is free the moment its owner dies."""
    import fcntl

    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise _at_work(path, f" ({owner or 'just starting'})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _lock_without_fcntl(path: Path) -> Iterator[None]:
    """Windows' own lock, where workers are not forked."""
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise _at_work(path) from None
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _at_work(path: Path, who: str = "") -> UsageError:
    return UsageError(f"another process{who} is at work in {path}: wait until it ends, or stop it first.")


def unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written to ({error.strerror}): name another folder with --out.")
