"""Checkpoints: all that a run needs to resume and reach bitwise the same result as if it had never stopped.

A checkpoint is a snapshot (see ``fedvra.state.durable``) in ``checkpoint/000050``: there whole or not at all. It holds the
server's state and every client's rows as of the end of a round; what a round draws at random follows from the seed and its
number.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from fedvra.core.adaptive import Memory
from fedvra.core.deploy import Deployed
from fedvra.core.errors import FedvraError
from fedvra.core.threads import one_thread
from fedvra.engines.federation import Federation
from fedvra.engines.fingerprint import probe, require_same_probe
from fedvra.local.protocol import StepPath
from fedvra.problems.base import frozen_of
from fedvra.state.durable import intact_snapshots, save_snapshot, snapshots
from fedvra.state.frozen import keep_frozen, require_frozen

SHARD_BYTES = 64 << 20
"""Client rows are written in files of about this size; saving takes about three times as much memory."""


def save(federation: Federation, folder: Path) -> Path:
    """Write the federation's state as of its last finished round; returns the new checkpoint's folder."""
    number = federation.state.round
    facts: dict[str, Any] = {"round": number, "clients": federation.total, "parameters": federation.state.x0.numel()}
    facts |= {"path": federation.state.path.name, "path_reason": federation.state.path.reason}
    facts["time"] = federation.state.time
    facts["probe"] = _probed(federation)
    try:
        frozen = frozen_of(federation.experiment.problem, federation.experiment.seed)
        facts["frozen"] = keep_frozen(folder.parent, frozen)
        return save_snapshot(folder, number, _files(federation), facts)
    except OSError as error:
        raise FedvraError(
            f"the checkpoint of round {number} could not be written to {folder} ({error.strerror}): "
            "free some space and resume; earlier checkpoints are intact."
        ) from error


def restore(federation: Federation, folder: Path, up_to: int | None = None) -> int:
    """Bring a fresh federation to the newest intact checkpoint; returns its round, 0 where there is none.

    Args:
        up_to: the last round that the run's records cover: later checkpoints are of no use.
    """
    too_late = None
    for path, manifest in intact_snapshots(folder):
        if up_to is None or manifest["round"] <= up_to:
            _load(federation, path, manifest)
            return federation.state.round
        too_late = path
    if too_late is not None:
        raise FedvraError(
            f"the records end at round {up_to}, before the checkpoint {too_late}: put metrics.jsonl back as it was, "
            "or remove the folder checkpoint to start over."
        )
    if snapshots(folder):
        warnings.warn(f"no checkpoint in {folder} is intact: starting over from the first round.", stacklevel=2)
    return 0


def _files(federation: Federation) -> Iterator[tuple[str, dict[str, Tensor]]]:
    state = federation.state
    took_part = np.flatnonzero(state.counts)
    server = {
        "x0": state.x0,
        "lam": state.lam,
        "took_part": torch.from_numpy(took_part),
        "counts": torch.from_numpy(state.counts[took_part]),
        **({"private_steps": torch.from_numpy(state.private_steps[took_part])} if state.private_steps.any() else {}),
        **state.memory.tensors(),
    }
    if state.aux is not None:
        server["aux"] = state.aux
    if state.deployed is not None:
        server |= state.deployed.tensors()
    yield "server.safetensors", server
    for name, store in federation.clients.kinds().items():
        per_file = max(1, SHARD_BYTES // max(1, store.width * store.dtype.itemsize))
        clients = store.clients()
        for k in range(0, len(clients), per_file):
            some = clients[k : k + per_file]
            rows = torch.stack(list(store.rows(some)))
            yield f"{name}-{k // per_file:05d}.safetensors", {"clients": torch.tensor(some), "rows": rows}


def _load(federation: Federation, folder: Path, manifest: dict[str, Any]) -> None:
    state = federation.state
    server = _tensors(folder / "server.safetensors")
    if manifest["clients"] != federation.total or server["x0"].shape != state.x0.shape:
        raise FedvraError(
            f"checkpoint {folder} is of {manifest['clients']} clients and {manifest['parameters']} parameters, and the run "
            f"has {federation.total} and {state.x0.numel()}: was config.yaml changed?"
        )
    problem, seed = federation.experiment.problem, federation.experiment.seed
    if "frozen" in manifest:
        require_frozen(folder.parent.parent, manifest["frozen"], frozen_of(problem, seed))
    device = state.x0.device
    state.round, state.x0, state.lam = manifest["round"], server["x0"].to(device), server["lam"].to(device)
    if manifest.get("path") not in (None, state.path.name):  # it was left in an earlier round
        federation.take_path(StepPath(manifest["path"], manifest["path_reason"]))
    state.aux = server["aux"].to(device) if "aux" in server else None
    state.memory = Memory.of(server)
    deployed = Deployed.of(server)
    state.deployed = None if deployed is None else deployed.to(device)
    state.time = float(manifest.get("time", 0.0))
    state.counts[server["took_part"].numpy()] = server["counts"].numpy()
    if "private_steps" in server:
        state.private_steps[server["took_part"].numpy()] = server["private_steps"].numpy()
    for name, store in federation.clients.kinds().items():
        store.clear()
        for file in manifest["files"]:
            if file.startswith(f"{name}-"):
                shard = _tensors(folder / file)
                if shard["rows"].shape[1] != store.width:
                    raise FedvraError(
                        f"checkpoint {folder} holds {name} of {shard['rows'].shape[1]} numbers per client, and the run needs "
                        f"{store.width}: was the problem changed?"
                    )
                store.put(shard["clients"].tolist(), list(shard["rows"]))
    require_same_probe(manifest.get("probe"), _probed(federation), state.x0.dtype, folder.parent.parent)


def _probed(federation: Federation) -> dict[str, float] | None:
    """By what model, loss and data are known again; on the CPU, wherever the run is."""
    state = federation.state
    with one_thread():
        return probe(
            federation.experiment, federation.total, state.x0.cpu(), None if state.aux is None else state.aux.cpu()
        )


def _tensors(path: Path) -> dict[str, Tensor]:
    """Copies in memory of their own, aligned as torch aligns: arithmetic must not notice where a vector came from."""
    return {name: tensor.clone() for name, tensor in load(path.read_bytes()).items()}
