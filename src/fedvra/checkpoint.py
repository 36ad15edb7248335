"""Checkpoints: all that a run needs to go on to bitwise the same result as if it had never stopped.

A checkpoint is a folder ``checkpoint/000050`` of safetensors files and a ``manifest.json`` with the SHA-256 of each (no
pickle). It is written under a temporary name, fsynced and renamed, so it is there whole or not at all; the last two are kept,
and one that is damaged is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvra.errors import FedvraError
from fedvra.federation import Federation

KEEP = 2
SHARD_BYTES = 256 << 20
"""Client rows are written in files of about this size, so that saving needs no more memory than that."""
FORMAT = 1


def save(federation: Federation, folder: Path) -> Path:
    """Write the federation's state as of its last finished round; returns the new checkpoint's folder."""
    final = folder / f"{federation.state.round:06d}"
    if final.exists():
        return final
    temporary = folder / f".writing-{final.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        digests = {name: _write_tensors(temporary / name, tensors) for name, tensors in _files(federation)}
        manifest = {"format": FORMAT, "round": federation.state.round, "sha256": digests}
        _write_durably(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
        _sync_folder(temporary)
        temporary.rename(final)
        _sync_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise FedvraError(
            f"the checkpoint of round {federation.state.round} could not be written to {folder} ({error}): "
            "free some space and resume; earlier checkpoints are intact."
        ) from error
    for old in _existing(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def restore(federation: Federation, folder: Path) -> int:
    """Bring a fresh federation to the newest intact checkpoint; returns its round, 0 where there is none."""
    for candidate in reversed(_existing(folder)):
        try:
            manifest = _verified_manifest(candidate)
        except _DamagedError as damage:
            warnings.warn(f"checkpoint {candidate} is damaged ({damage}): using the one before it.", stacklevel=2)
            continue
        _load(federation, candidate, manifest)
        return federation.state.round
    return 0


class _DamagedError(Exception):
    pass


def _existing(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []


def _files(federation: Federation) -> Iterator[tuple[str, dict[str, Tensor]]]:
    state = federation.state
    took_part = np.flatnonzero(state.counts)
    server = {
        "x0": state.x0,
        "lam": state.lam,
        "took_part": torch.from_numpy(took_part),
        "counts": torch.from_numpy(state.counts[took_part]),
    }
    if state.aux is not None:
        server["aux"] = state.aux
    yield "server.safetensors", server
    for name, store in federation.stores.items():
        rows_per_file = max(1, SHARD_BYTES // max(1, store.width * store.dtype.itemsize))
        clients = store.clients()
        for k in range(0, len(clients), rows_per_file):
            yield (
                f"{name}-{k // rows_per_file:05d}.safetensors",
                {str(client): store.get(client) for client in clients[k : k + rows_per_file]},
            )


def _load(federation: Federation, folder: Path, manifest: dict[str, Any]) -> None:
    server = load_file(folder / "server.safetensors")
    state = federation.state
    if server["x0"].shape != state.x0.shape or server["x0"].dtype != state.x0.dtype:
        raise FedvraError(
            f"checkpoint {folder} belongs to another model: its x0 has {server['x0'].numel()} parameters."
        )
    state.round, state.x0, state.lam, state.aux = manifest["round"], server["x0"], server["lam"], server.get("aux")
    state.counts[server["took_part"].numpy()] = server["counts"].numpy()
    for name, store in federation.stores.items():
        store.clear()
        for path in sorted(folder.glob(f"{name}-*.safetensors")):
            for client, row in load_file(path).items():
                store.put(int(client), row)


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
    for name, digest in digests.items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise _DamagedError(f"{name}: {error.strerror}") from error
        if found != digest:
            raise _DamagedError(f"{name} has changed since it was written")
    return manifest


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _digest(path)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
