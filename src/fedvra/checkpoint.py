"""Checkpoints: all that a run needs to go on to bitwise the same result as if it had never stopped.

A checkpoint is a snapshot (see ``fedvra.durable``) in ``checkpoint/000050``: there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedvra.durable import newest_snapshot, save_snapshot
from fedvra.errors import FedvraError
from fedvra.federation import Federation

SHARD_BYTES = 256 << 20
"""Client rows are written in files of about this size, so that saving needs no more memory than that."""


def save(federation: Federation, folder: Path) -> Path:
    """Write the federation's state as of its last finished round; returns the new checkpoint's folder."""
    number = federation.state.round
    try:
        return save_snapshot(folder, number, _files(federation), {"round": number})
    except (OSError, SafetensorError) as error:
        raise FedvraError(
            f"the checkpoint of round {number} could not be written to {folder} ({error}): "
            "free some space and resume; earlier checkpoints are intact."
        ) from error


def restore(federation: Federation, folder: Path) -> int:
    """Bring a fresh federation to the newest intact checkpoint; returns its round, 0 where there is none."""
    found = newest_snapshot(folder)
    if found is None:
        return 0
    _load(federation, found[0], found[1]["round"])
    return federation.state.round


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


def _load(federation: Federation, folder: Path, number: int) -> None:
    server = load_file(folder / "server.safetensors")
    state = federation.state
    if server["x0"].shape != state.x0.shape or server["x0"].dtype != state.x0.dtype:
        raise FedvraError(
            f"checkpoint {folder} belongs to another model: its x0 has {server['x0'].numel()} parameters."
        )
    state.round, state.x0, state.lam, state.aux = number, server["x0"], server["lam"], server.get("aux")
    state.counts[server["took_part"].numpy()] = server["counts"].numpy()
    for name, store in federation.stores.items():
        store.clear()
        for path in sorted(folder.glob(f"{name}-*.safetensors")):
            for client, row in load_file(path).items():
                store.put(int(client), row)
