"""Files that are there whole or not at all, also after a power cut.

A snapshot is a numbered folder (``000050``) of safetensors files and a ``manifest.json`` with the SHA-256 of each and of
itself (no pickle); with a secret key the latter is an HMAC, which only those who have the key can make. It is written under a
temporary name, fsynced and renamed; the last two are kept, and one that is damaged is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedvra.core.errors import FedvraError
from fedvra.core.files import sync_folder, write_durably

KEEP = 2
FORMAT = 1
WRITING = ".writing-"
"""How the name of a snapshot begins that is being written, or was when its writer died."""


def save_snapshot(
    folder: Path,
    number: int,
    files: Iterable[tuple[str, dict[str, Tensor]]],
    facts: Mapping[str, Any],
    key: bytes | None = None,
) -> Path:
    """Write snapshot ``number``, unless it is there intact; its manifest carries ``facts``. Raises what the disk raises."""
    final = folder / f"{number:06d}"
    if final.exists():
        with suppress(_DamagedError):
            _verified_manifest(final, key)
            return final
        shutil.rmtree(final)
    for left_behind in folder.glob(f"{WRITING}*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    temporary = folder / f"{WRITING}{final.name}"
    try:
        temporary.mkdir(parents=True)
        digests = {name: write_tensors(temporary / name, tensors) for name, tensors in files}
        manifest = {"format": FORMAT, **facts, "files": digests}
        sealed = {**manifest, "sha256": seal(manifest, key)}
        write_durably(temporary / "manifest.json", json.dumps(sealed, indent=1).encode())
        sync_folder(temporary)
        temporary.rename(final)
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    keep = [path for path in snapshots(folder) if int(path.name) <= number][-KEEP:]
    for other in snapshots(folder):  # later ones too: who is here again had no use for them
        if other not in keep:
            shutil.rmtree(other, ignore_errors=True)
    return final


def snapshots(folder: Path) -> list[Path]:
    """All there are, damaged ones included, in the order of their numbers."""
    found = [path for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def intact_snapshots(folder: Path, key: bytes | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Those that are as they were written, newest first, with their manifests; warns of the others on the way."""
    for candidate in reversed(snapshots(folder)):
        try:
            manifest = _verified_manifest(candidate, key)
        except _DamagedError as damage:
            warnings.warn(f"checkpoint {candidate} is damaged ({damage}) and passed over.", stacklevel=3)
            continue
        if manifest["format"] != FORMAT:
            raise FedvraError(
                f"checkpoint {candidate} has format {manifest['format']} and this version of fedvra reads {FORMAT}: "
                "resume with the version that wrote it."
            )
        yield candidate, manifest


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a safetensors file that is on the disk when this returns; gives its SHA-256."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_durably(path, content)
    return hashlib.sha256(content).hexdigest()  # of what was meant, not of what the disk made of it


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _DamagedError(Exception):
    pass


def seal(content: Mapping[str, Any], key: bytes | None = None) -> str:
    """SHA-256 of JSON content, or its HMAC under a secret key."""
    plain = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(plain).hexdigest() if key is None else hmac.new(key, plain, "sha256").hexdigest()


def _verified_manifest(folder: Path, key: bytes | None) -> dict[str, Any]:
    """The manifest, once it and every file in it have the recorded digest."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        if not hmac.compare_digest(str(manifest.pop("sha256")), seal(manifest, key)):
            raise _DamagedError("manifest.json has changed since it was written")
    except OSError as error:
        raise _DamagedError(f"manifest.json: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError("manifest.json is not one") from error
    for name, expected in manifest["files"].items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise _DamagedError(f"{name}: {error.strerror}") from error
        if found != expected:
            raise _DamagedError(f"{name} has changed since it was written")
    return manifest
