"""From a partition's answer, an owner per sample, to each client's samples; and what a partition is given to go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset


def to_go_by(dataset: Dataset, by: Any) -> NDArray[Any]:
    """What a partition is given to go by, one entry per sample: ``by``, the labels, or the targets, whatever they are."""
    if by is None:
        if dataset.labels is not None:
            return dataset.labels
        if not isinstance(dataset.targets, Tensor) or dataset.targets.is_meta:
            return np.empty((len(dataset), 0))  # nothing to go by: partitions that need no labels count the rows
        bfloat16 = dataset.targets.dtype == torch.bfloat16  # which NumPy does not know
        array = (dataset.targets.float() if bfloat16 else dataset.targets).numpy()
        column = array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "biu"
        array = array[:, 0] if column else array
        return array.astype(np.int64) if array.dtype.kind == "b" else array
    labels = by.numpy() if isinstance(by, Tensor) else np.asarray(by)
    require(
        labels.shape == (len(dataset),) and labels.dtype.kind in "biuUS",
        f"by= must hold one label per sample, {len(dataset)} whole numbers or names; "
        f"got {labels.dtype} of shape {list(labels.shape)}.",
    )
    return labels if labels.dtype.kind in "iu" else np.unique(labels, return_inverse=True)[1]


def by_owner(owners: NDArray[np.int64], samples: int, clients: int | None) -> tuple[Ints, Ints]:
    """(offsets, indices) of the samples grouped by owner."""
    require(
        owners.shape == (samples,),
        f"the partition named owners for {len(owners)} of {samples} samples; it must name one per sample.",
    )
    total = int(owners.max()) + 1 if clients is None else clients
    require(
        int(owners.max()) < total,
        f"the partition assigned samples to client {int(owners.max())}, but there are {total} clients.",
    )
    assigned = np.flatnonzero(owners >= 0)
    indices = assigned[np.argsort(owners[assigned], kind="stable")]
    sizes = np.bincount(owners[assigned], minlength=total)
    empty = np.flatnonzero(sizes == 0)
    require(
        total >= 1 and len(empty) == 0,
        f"{len(empty)} of {total} clients would hold no data (first: client {empty[0] if len(empty) else 0}): "
        "ask for fewer clients or a less skewed partition.",
    )
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indices.astype(np.int64)
