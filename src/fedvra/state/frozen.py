"""The part of a model that is not trained: never sent, kept once by its hash, and the same wherever a run is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedvra.core.errors import FedvraError
from fedvra.core.files import replace_durably


def frozen_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes, dtypes and values; empty where nothing is frozen.

    >>> frozen_hash({})
    ''
    >>> frozen_hash({"w": torch.zeros(2)}) == frozen_hash({"w": torch.zeros(3)})
    False
    """
    if not tensors:
        return ""
    found = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tuple(t.shape)} {t.dtype}\n".encode())
        found.update(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return found.hexdigest()


def keep_frozen(folder: Path, tensors: Mapping[str, Tensor]) -> str:
    """Have the tensors in ``folder`` under their hash, which is returned; written once."""
    name = frozen_hash(tensors)
    path = folder / file_of(name)
    if name and not path.exists():
        replace_durably(path, save({key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}))
    return name


def require_frozen(folder: Path, wanted: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise where the model's frozen part is not the one that a run was started with."""
    found = frozen_hash(tensors)
    if wanted != found:
        raise FedvraError(
            f"what is frozen in the model is not what the run was started with ({found[:12] or 'nothing'}, not "
            f"{wanted[:12] or 'nothing'}): load {folder / file_of(wanted)} into it, or make it as it was made then."
        )


def file_of(name: str) -> str:
    return f"frozen-{name[:16]}.safetensors"
