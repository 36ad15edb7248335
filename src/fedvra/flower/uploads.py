"""Uploads are checked before they count: one client that is broken, or means harm, must not spoil the model of all.

What is checked: that the vector can be read without unpickling, its shape, its dtype, that every number is finite, and, where
a bound is set, its Euclidean norm. An upload that fails is refused by name; its client's dual is not committed, and the round
goes on without it.
"""

from __future__ import annotations

import torch
from flwr.app import Array
from torch import Tensor

from fedvra.errors import FedvraError
from fedvra.flower.protocol import BadMessageError, read_array


class RefusedUploadError(FedvraError):
    """An upload that will not be counted, and why."""


def checked_vector(array: Array | None, like: Tensor, name: str, max_norm: float | None = None) -> Tensor:
    """The vector in an upload, once it is known to be one that can be added to ``like``."""
    if array is None:
        raise RefusedUploadError(f"{name} is missing")
    try:
        found = read_array(array)
    except BadMessageError as error:
        raise RefusedUploadError(f"{name}: {error}") from error
    if found.dtype != like.dtype:
        raise RefusedUploadError(f"{name} is {found.dtype}, expected {like.dtype}")
    if found.shape != like.shape:
        raise RefusedUploadError(f"{name} has shape {list(found.shape)}, expected {list(like.shape)}")
    bad = int((~torch.isfinite(found)).sum())
    if bad:
        raise RefusedUploadError(f"{name} holds NaN or infinity in {bad} of {found.numel()} places")
    norm = float(torch.linalg.vector_norm(found.double()))
    if max_norm is not None and norm > max_norm:
        raise RefusedUploadError(f"{name} has norm {norm:.4g}, more than the bound {max_norm:.4g}")
    return found
