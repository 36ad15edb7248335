"""Data, in memory or not, and their division among clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.core.validation import check_whole, frozen_array
from fedvra.data import trees
from fedvra.data.checking import checked, labels_of
from fedvra.data.held_out import hold_out
from fedvra.data.lazy import ClientReader, Reader, obtained
from fedvra.data.owners import by_owner, to_go_by
from fedvra.data.partitions.base import Partition
from fedvra.data.transform import Transform
from fedvra.data.trees import Tree

__all__ = ["Dataset", "FederatedData", "Transform", "checked", "per_client", "split"]

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
    in ``transform``. Most people need none of this: :func:`fedvra.split` makes one from arrays or a torch Dataset.

    >>> import torch, fedvra as fv
    >>> images = fv.Dataset("mine", torch.zeros(100, 1, 8, 8, dtype=torch.uint8), torch.arange(100) % 10, classes=10)
    >>> len(images), images.labels[:3].tolist()
    (100, [0, 1, 2])
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
    reader: Reader | None = None
    """Where samples that are not in memory come from: ``inputs`` then has a shape and no content, and so may ``targets``."""
    test_reader: Reader | None = None
    """The same of the test data."""

    def __len__(self) -> int:
        if self.reader is not None:
            return len(self.reader)
        return trees.count(self.targets) if self.collate is None else len(self.targets)

    @property
    def test_samples(self) -> int:
        """How many samples there are to evaluate on."""
        if self.test_reader is not None:
            return len(self.test_reader)
        if self.test_targets is None:
            return 0
        return trees.count(self.test_targets) if self.collate is None else len(self.test_targets)

    def take(self, rows: Ints | slice) -> tuple[Tree, Tree]:
        """(inputs, targets) of these samples, as stored or as ``collate`` gives them; a slice may give views."""
        if self.reader is not None:
            return self.reader.take(rows)
        return self.batch_of(self.inputs, self.targets, rows)

    def take_test(self, rows: Ints | slice) -> tuple[Tree, Tree]:
        """The same of the test data."""
        if self.test_reader is not None:
            return self.test_reader.take(rows)
        return self.batch_of(self.test_inputs, self.test_targets, rows)

    def batch_of(self, inputs: Tree, targets: Tree, rows: Ints | slice) -> tuple[Tree, Tree]:
        """These rows of other inputs and targets of the same kind."""
        if self.collate is None:
            return trees.take(inputs, rows), trees.take(targets, rows)
        numbers = range(len(targets))[rows] if isinstance(rows, slice) else rows.tolist()
        return trees.pair(self.collate([(inputs[k], targets[k]) for k in numbers]))

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
        require(
            self.reader is None and self.test_reader is None,
            f"{who} looks at all its data at once, so they must be in memory: give arrays, or fv.split(..., lazy=False).",
        )


@dataclass(frozen=True)
class FederatedData(Value):
    """A data set and its division among clients, as one flat index array: N may be a million.

    Client i holds ``indices[offsets[i]:offsets[i + 1]]``, in ascending order; its own test data likewise.

    >>> import numpy as np, fedvra as fv
    >>> data = fv.split((np.zeros((6, 2)), np.arange(6) % 2), fv.IID(), clients=3)
    >>> data.clients, data.sizes.tolist(), len(data.part(0))
    (3, [2, 2, 2], 2)
    """

    dataset: Dataset
    offsets: Ints
    indices: Ints
    unseen: int = 0
    """So many further clients, with the numbers after N-1, never train."""
    validation: Ints | None = None  # samples to choose by
    test_offsets: Ints | None = None
    test_indices: Ints | None = None

    @property
    def clients(self) -> int:
        """N, the clients that may train."""
        return len(self.offsets) - 1 - self.unseen

    @property
    def sizes(self) -> Ints:
        """n_i for every client."""
        return np.diff(self.offsets)[: self.clients]

    @property
    def trained(self) -> Ints:
        """All samples that are trained on, by client."""
        return self.indices[: self.offsets[self.clients]]

    def part(self, client: int) -> Ints:
        """The samples of one client: row numbers in ``dataset.inputs``."""
        last = len(self.offsets) - 2
        require(0 <= client <= last, f"there is no client {client}: they are numbered 0 to {last}.")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def own_test(self, client: int) -> Ints:
        """The samples that one client is tested on: its held-out ones; all it has, where it never trains and none are."""
        if self.test_offsets is None or self.test_indices is None:
            return self.part(client) if client >= self.clients else np.empty(0, dtype=np.int64)
        return self.test_indices[self.test_offsets[client] : self.test_offsets[client + 1]]


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
    lazy: bool | None = None,
    validation: float = 0.0,
    test_share: float = 0.0,
    unseen: int = 0,
) -> FederatedData:
    """Check the data and partition them among the clients.

    Args:
        dataset: a :class:`Dataset`, a pair (inputs, targets) of arrays or of dicts, tuples and lists of arrays, or a
            map-style torch Dataset of such pairs. Arrays that NumPy maps from a file (``np.load(path, mmap_mode="r")``) stay in
            the file, and are read batch by batch; so are the samples of a Dataset that memory has no room for. Another
            Dataset is read once, into memory. Random transforms of its own are refused or frozen: give them here instead.
        partition: who gets what, e.g. ``Dirichlet(0.2)``, or as the command line writes it, ``"dirichlet:0.2"``.
        clients: how many clients; may be left out for ``ByColumn``.
        seed: the same seed assigns the same samples to the same clients.
        test: data to evaluate on, in the same forms; replaces what the dataset brings.
        transform: per-batch transform; replaces what the dataset brings.
        classes: number of classes, where the labels that occur do not tell.
        by: labels [n], numbers or names, for a partition that goes by them where the targets are no labels.
        collate: makes a batch (inputs, targets) out of a list of samples, as a DataLoader's ``collate_fn``. ``dataset`` (and
            ``test``) is then a list or Dataset of samples (input, target) of any kind and size, kept as they are.
        lazy: whether a Dataset or a mapped file is read batch by batch, while the step before is computed; None: where it is a
            mapped file, or would take more than a quarter of the free memory. Numbers are the same to the bit. A partition
            that goes by labels then needs ``by``, unless the targets are an array.
        validation: share of every client's samples to set aside to choose by (early stopping, ``fedvra tune``).
        test_share: share of every client's samples to set aside for testing on that client, see ``fv.ClientResults``.
        unseen: so many more clients never train, and show how the model does on newcomers; they come after the others.

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
        require(lazy is None, "lazy= is for Datasets of torch and mapped files: a fv.Dataset is as it was made.")
        collate = collate or dataset.collate
    else:
        inputs, targets, reader = obtained(dataset, "the data", collate, lazy)
        dataset = Dataset(name="own", inputs=inputs, targets=targets, reader=reader)
    if test is not None:
        inputs, targets, reader = obtained(test, "the test data", collate, lazy)
        dataset = replace(dataset, test_inputs=inputs, test_targets=targets, test_reader=reader)
    given: dict[str, Any] = {"transform": transform, "classes": classes, "collate": collate}
    dataset = checked(replace(dataset, **{name: value for name, value in given.items() if value is not None}))
    total = clients if clients is None else clients + check_whole("unseen", unseen, least=0)
    owners = partition.assign(to_go_by(dataset, by), total, seed)
    divided = FederatedData(dataset, *by_owner(owners, len(dataset), total))
    return hold_out(divided, seed, validation, test_share, unseen)


def per_client(
    read: Callable[[int], Any],
    sizes: Sequence[int],
    *,
    test: torch.utils.data.Dataset[Any] | Pair | Sequence[Pair] | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
) -> FederatedData:
    """Clients whose data a function reads when it is their turn: from a file each, a query each.

    Args:
        read: from a client's number to its data, in the forms that :func:`split` takes; the same at every call.
        sizes: n_i, how many samples each client holds.
        test: data to evaluate on.
        transform: per-batch transform.
        classes: number of classes, where it is to be checked that the model has as many outputs.

    >>> import numpy as np
    >>> data = per_client(lambda i: (np.full((i + 1, 2), i), np.zeros(i + 1, dtype=int)), sizes=[1, 2, 3])
    >>> data.clients, data.dataset.take(data.part(2))[0].tolist()
    (3, [[2, 2], [2, 2], [2, 2]])
    """
    require(callable(read), f"read must be a function from a client's number to its data, got {read!r}.")
    counts = frozen_array(sizes, np.int64, "sizes")
    require(
        counts.ndim == 1 and len(counts) > 0 and bool((counts >= 1).all()),
        f"sizes must say how many samples each client holds, 1 or more; got {counts.tolist()}.",
    )
    reader = ClientReader(read, counts)
    inputs, targets = reader.stand_in()
    dataset = Dataset("own", inputs, targets, transform=transform or Transform(), classes=classes, reader=reader)
    if test is not None:
        test_inputs, test_targets, test_reader = obtained(test, "the test data", None, None)
        dataset = replace(dataset, test_inputs=test_inputs, test_targets=test_targets, test_reader=test_reader)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return FederatedData(checked(dataset), offsets, np.arange(offsets[-1], dtype=np.int64))
