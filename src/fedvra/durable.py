"""Files that are there whole or not at all, also after a power cut.

A snapshot is a numbered folder (``000050``) of safetensors files and a ``manifest.json`` with the SHA-256 of each (no pickle).
It is written under a temporary name, fsynced and renamed; the last two are kept, and one that is damaged is passed over for
the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

KEEP = 2
FORMAT = 1


def save_snapshot(
    folder: Path, number: int, files: Iterable[tuple[str, dict[str, Tensor]]], facts: Mapping[str, Any]
) -> Path:
    """Write snapshot ``number``, unless it is there; its manifest carries ``facts``. Raises what the disk raises."""
    final = folder / f"{number:06d}"
    if final.exists():
        return final
    temporary = folder / f".writing-{final.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        digests = {name: write_tensors(temporary / name, tensors) for name, tensors in files}
        manifest = {"format": FORMAT, **facts, "sha256": digests}
        write_durably(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
        sync_folder(temporary)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in _existing(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest_snapshot(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest intact snapshot and its manifest; None where there is none."""
    for candidate in reversed(_existing(folder)):
        try:
            return candidate, _verified_manifest(candidate)
        except _DamagedError as damage:
            warnings.warn(f"checkpoint {candidate} is damaged ({damage}): using the one before it.", stacklevel=3)
    return None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a safetensors file that is on the disk when this returns; gives its SHA-256."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return digest(path)


def write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file by another in one step: whoever reads it, whenever, sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.writing")
    write_durably(temporary, content)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _DamagedError(Exception):
    pass


def _existing(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []


def _verified_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, once every file in it is there and has the recorded digest."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        digests = manifest["sha256"]
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _DamagedError(f"manifest.json: {error}") from error
    if version != FORMAT:
        raise _DamagedError(f"format {version}, this version reads {FORMAT}")
    for name, expected in digests.items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise _DamagedError(f"{name}: {error.strerror}") from error
        if found != expected:
            raise _DamagedError(f"{name} has changed since it was written")
    return manifest
