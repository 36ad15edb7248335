"""Data in memory, and its division among clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.data import trees
from fedvra.data.checking import checked, labels_of
from fedvra.data.partitions.base import Partition
from fedvra.data.reading import as_pair, as_samples
from fedvra.data.transform import Transform
from fedvra.data.trees import Tree

__all__ = ["Dataset", "FederatedData", "Transform", "checked", "split"]

Pair: TypeAlias = tuple[Any, Any]
"""(inputs, targets): torch tensors or anything NumPy can read, or dicts, tuples and lists of these; one row per sample."""
Collate: TypeAlias = Callable[[list[tuple[Any, Any]]], tuple[Any, Any]]
"""Samples (input, target) -> (inputs, targets) of a batch, as a DataLoader's ``collate_fn``."""


@dataclass(frozen=True)
class Dataset(Value):
    """Samples as stored (images: uint8 [n, C, H, W]) with their targets, and what to do to a batch of them.

    Inputs and targets are tensors, or trees of tensors that share their first dimension: a dict is given to the model as
    ``model(**inputs)``, a tuple or list as ``model(*inputs)``. With ``collate`` they are lists of whatever that can make a
    batch of, one entry per sample. Nothing is copied or converted here: normalisation and augmentation happen per batch,
    in ``transform``.
    """

    name: str
    inputs: Tree
    targets: Tree
    test_inputs: Tree | None = None
    test_targets: Tree | None = None
    transform: Transform = field(default_factory=Transform)
    classes: int | None = None
    """The number of classes: labels are 0..classes-1. None where targets are not labels, or where it is to be inferred."""
    class_names: tuple[str, ...] = ()
    collate: Collate | None = None

    def __len__(self) -> int:
        return trees.count(self.targets) if self.collate is None else len(self.targets)

    @property
    def test_samples(self) -> int:
        """How many samples there are to evaluate on."""
        if self.test_targets is None:
            return 0
        return trees.count(self.test_targets) if self.collate is None else len(self.test_targets)

    def take(self, rows: Ints | slice) -> tuple[Tree, Tree]:
        """(inputs, targets) of these samples, as stored or as ``collate`` gives them; a slice may give views."""
        return self.batch_of(self.inputs, self.targets, rows)

    def take_test(self, rows: Ints | slice) -> tuple[Tree, Tree]:
        """The same of the test data."""
        return self.batch_of(self.test_inputs, self.test_targets, rows)

    def batch_of(self, inputs: Tree, targets: Tree, rows: Ints | slice) -> tuple[Tree, Tree]:
        """These rows of other inputs and targets of the same kind."""
        if self.collate is None:
            return trees.take(inputs, rows), trees.take(targets, rows)
        numbers = range(len(targets))[rows] if isinstance(rows, slice) else rows.tolist()
        batch = self.collate([(inputs[k], targets[k]) for k in numbers])
        require(
            isinstance(batch, tuple | list) and len(batch) == 2,
            f"collate must return a pair (inputs, targets), got {type(batch).__name__}.",
        )
        return trees.plain(batch[0]), trees.plain(batch[1])

    @cached_property
    def labels(self) -> Ints | None:
        """The class of every sample, [n], where the targets are just that; -100 where there is none."""
        return labels_of(self.targets)

    def require_single(self, who: str) -> None:
        """Refuse trees and ragged samples for somebody who works on one array of inputs and one of targets."""
        require(
            self.collate is None and isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor),
            f"{who} needs inputs and targets that are one array each: no dicts, tuples or lists of them, and no collate.",
        )


@dataclass(frozen=True)
class FederatedData(Value):
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
    dataset: Dataset | torch.utils.data.Dataset[Any] | Pair | Sequence[Pair],
    partition: Partition | str,
    clients: int | None = None,
    seed: int = 0,
    *,
    test: torch.utils.data.Dataset[Any] | Pair | Sequence[Pair] | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
    by: Any = None,
    collate: Collate | None = None,
) -> FederatedData:
    """Check the data and deal them to the clients.

    Args:
        dataset: a :class:`Dataset`, a pair (inputs, targets) of arrays or of dicts, tuples and lists of arrays, or a
            map-style torch Dataset of such pairs (read once, into memory: random transforms of its own would be frozen, so
            give them here instead).
        partition: who gets what, e.g. ``Dirichlet(0.2)``, or as the command line writes it, ``"dirichlet:0.2"``.
        clients: how many clients; may be left out for ``ByColumn``.
        seed: the same seed deals the same samples to the same clients.
        test: data to evaluate on, in the same forms; replaces what the dataset brings.
        transform: per-batch transform; replaces what the dataset brings.
        classes: number of classes, where the labels that occur do not tell.
        by: labels [n], numbers or names, for a partition that goes by them where the targets are no labels.
        collate: makes a batch (inputs, targets) out of a list of samples, as a DataLoader's ``collate_fn``. ``dataset`` (and
            ``test``) is then a list or Dataset of samples (input, target) of any kind and size, kept as they are.

    >>> import numpy as np
    >>> from fedvra.data.partitions import IID
    >>> data = split((np.eye(6), np.arange(6) % 3), IID(), clients=2, seed=0)
    >>> data.clients, data.sizes.tolist(), data.dataset.classes
    (2, [3, 3], 3)
    """
    if isinstance(partition, str):
        from fedvra.data.partitions import parse_partition

        partition = parse_partition(partition)
    require(
        isinstance(partition, Partition),
        f"the partition must be an object such as fv.Dirichlet(0.2), got {partition!r}.",
    )
    if isinstance(dataset, Dataset):
        collate = collate or dataset.collate
    read = as_pair if collate is None else as_samples
    if not isinstance(dataset, Dataset):
        inputs, targets = read(dataset, "the data")
        dataset = Dataset(name="own", inputs=inputs, targets=targets)
    if test is not None:
        test_inputs, test_targets = read(test, "the test data")
        dataset = replace(dataset, test_inputs=test_inputs, test_targets=test_targets)
    given: dict[str, Any] = {"transform": transform, "classes": classes, "collate": collate}
    dataset = checked(replace(dataset, **{name: value for name, value in given.items() if value is not None}))
    owners = partition.assign(_to_go_by(dataset, by), clients, seed)
    return FederatedData(dataset, *_by_owner(owners, len(dataset), clients))


def _to_go_by(dataset: Dataset, by: Any) -> NDArray[Any]:
    """What a partition is given to go by, one entry per sample: ``by``, the labels, or the targets, whatever they are."""
    if by is None:
        if dataset.labels is not None:
            return dataset.labels
        if not isinstance(dataset.targets, Tensor):
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
