"""Data in memory, and its division among clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.cohort import Ints
from fedvra.data.partitions.base import Partition
from fedvra.data.reading import as_pair
from fedvra.data.transform import Transform
from fedvra.errors import UsageError, require

__all__ = ["Dataset", "FederatedData", "Transform", "split"]

Pair: TypeAlias = tuple[Any, Any]
"""(inputs, targets): torch tensors or anything NumPy can read, one row per sample."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as stored (images: uint8 [n, C, H, W]) with their targets, and what to do to a batch of them.

    Nothing is copied or converted here: normalisation and augmentation happen per batch, in ``transform``.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    transform: Transform = field(default_factory=Transform)
    classes: int | None = None
    """The number of classes: labels are 0..classes-1. None where targets are not labels, or where it is to be inferred."""
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set and who holds which of its samples, as one flat index array: N may be a million.

    Client i holds ``indices[offsets[i]:offsets[i + 1]]``, in ascending order.
    """

    dataset: Dataset
    offsets: Ints
    indices: Ints

    @property
    def clients(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """n_i for every client."""
        return np.diff(self.offsets)

    def part(self, client: int) -> Ints:
        """The samples of one client: row numbers in ``dataset.inputs``."""
        require(0 <= client < self.clients, f"there is no client {client}: they are numbered 0 to {self.clients - 1}.")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]


def split(
    dataset: Dataset | torch.utils.data.Dataset[Any] | Pair,
    partition: Partition,
    clients: int | None = None,
    seed: int = 0,
    *,
    test: torch.utils.data.Dataset[Any] | Pair | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
) -> FederatedData:
    """Check the data and deal them to the clients.

    Args:
        dataset: a :class:`Dataset`, a pair of arrays (inputs, targets), or a map-style torch Dataset of such pairs (read
            once, into memory: random transforms of its own would be frozen, so give them here instead).
        partition: who gets what, e.g. ``Dirichlet(0.2)``.
        clients: how many clients; may be left out for ``ByColumn``.
        seed: the same seed deals the same samples to the same clients.
        test: data to evaluate on, in the same forms; replaces what the dataset brings.
        transform: per-batch transform; replaces what the dataset brings.
        classes: number of classes, where the labels that occur do not tell.

    >>> import numpy as np
    >>> from fedvra.data.partitions import IID
    >>> data = split((np.eye(6), np.arange(6) % 3), IID(), clients=2, seed=0)
    >>> data.clients, data.sizes.tolist(), data.dataset.classes
    (2, [3, 3], 3)
    """
    require(
        isinstance(partition, Partition),
        f"the partition must be an object such as fv.Dirichlet(0.2), got {partition!r}.",
    )
    if not isinstance(dataset, Dataset):
        inputs, targets = as_pair(dataset, "the data")
        dataset = Dataset(name="own", inputs=inputs, targets=targets)
    if test is not None:
        test_inputs, test_targets = as_pair(test, "the test data")
        dataset = replace(dataset, test_inputs=test_inputs, test_targets=test_targets)
    if transform is not None:
        dataset = replace(dataset, transform=transform)
    if classes is not None:
        dataset = replace(dataset, classes=classes)
    dataset = checked(dataset)
    owners = partition.assign(dataset.targets.numpy(), clients, seed)
    return FederatedData(dataset, *_by_owner(owners, len(dataset), clients))


def checked(dataset: Dataset) -> Dataset:
    """The same data set with ``classes`` filled in, or a UsageError that names what is wrong with it."""
    _check_part(dataset.inputs, dataset.targets, dataset.transform, "the data")
    labelled = dataset.targets.ndim == 1 and not dataset.targets.is_floating_point()
    if labelled and dataset.classes is None:
        dataset = replace(dataset, classes=max(1, int(dataset.targets.max()) + 1))
    if labelled:
        _check_labels(dataset.targets, dataset.classes, "the data")
    if (dataset.test_inputs is None) != (dataset.test_targets is None):
        raise UsageError("test inputs and test targets go together: give both or neither.")
    if dataset.test_inputs is not None and dataset.test_targets is not None:
        _check_part(dataset.test_inputs, dataset.test_targets, dataset.transform, "the test data")
        require(
            dataset.test_inputs.shape[1:] == dataset.inputs.shape[1:],
            f"a test sample has shape {list(dataset.test_inputs.shape[1:])} and a training sample "
            f"{list(dataset.inputs.shape[1:])}; they must agree.",
        )
        if labelled:
            _check_labels(dataset.test_targets, dataset.classes, "the test data")
    return dataset


def _check_part(inputs: Tensor, targets: Tensor, transform: Transform, where: str) -> None:
    require(len(targets) > 0, f"{where}: there are no samples.")
    require(
        len(inputs) == len(targets),
        f"{where}: {len(inputs)} inputs and {len(targets)} targets; give exactly one target per input.",
    )
    for what, values in (("inputs", inputs), ("targets", targets)):
        if values.is_floating_point():
            bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
            require(
                not bool(bad.any()),
                f"{where}: the {what} hold NaN or infinity in {int(bad.sum())} of {len(values)} samples "
                f"(first: sample {int(bad.int().argmax())}); remove or fill them.",
            )
    channels = inputs.shape[1] if inputs.ndim > 1 else 1
    require(
        len(transform.mean) in (0, 1, channels),
        f"{where}: the transform normalises {len(transform.mean)} channels, the inputs have {channels}.",
    )


def _check_labels(labels: Tensor, classes: int | None, where: str) -> None:
    assert classes is not None
    require(
        labels.ndim == 1 and not labels.is_floating_point(),
        f"{where}: targets must be one integer label per sample, as in the training data.",
    )
    low, high = int(labels.min()), int(labels.max())
    require(
        low >= 0 and high < classes,
        f"{where}: labels run from {low} to {high}, outside 0..{classes - 1}: "
        "renumber them from 0, or say how many classes there are (classes=...).",
    )


def _by_owner(owners: NDArray[np.int64], samples: int, clients: int | None) -> tuple[Ints, Ints]:
    """(offsets, indices) of the samples grouped by owner."""
    require(
        owners.shape == (samples,),
        f"the partition named owners for {len(owners)} of {samples} samples; it must name one per sample.",
    )
    total = int(owners.max()) + 1 if clients is None else clients
    require(int(owners.max()) < total, f"the partition dealt to client {int(owners.max())}, but there are {total}.")
    dealt = np.flatnonzero(owners >= 0)
    indices = dealt[np.argsort(owners[dealt], kind="stable")]
    sizes = np.bincount(owners[dealt], minlength=total)
    empty = np.flatnonzero(sizes == 0)
    require(
        total >= 1 and len(empty) == 0,
        f"{len(empty)} of {total} clients would hold no data (first: client {empty[0] if len(empty) else 0}): "
        "ask for fewer clients or a less skewed partition.",
    )
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indices.astype(np.int64)
