"""Data sets of Hugging Face's ``datasets``, and the partitioners of ``flwr_datasets``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError, require
from fedvra.data.dataset import Collate, FederatedData, split
from fedvra.data.partitions import UNASSIGNED, ByColumn
from fedvra.data.partitions.base import Partition
from fedvra.data.transform import Transform

ROW = "fedvra_row"
"""A column that tells which row is which once somebody else has partitioned them."""


@dataclass(frozen=True)
class Owners(Partition):
    """Owners that somebody else has named."""

    values: Any

    _read_only: ClassVar[bool] = True

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        return np.asarray(self.values, dtype=np.int64)


class Rows(torch.utils.data.Dataset[Any]):
    """The rows of a Hugging Face data set as pairs (input, target)."""

    def __init__(self, dataset: Any, inputs: str | Sequence[str], target: str) -> None:
        self.dataset, self.inputs, self.target = dataset, inputs, target

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        row = self.dataset[index]
        if isinstance(self.inputs, str):
            return row[self.inputs], row[self.target]
        return {name: row[name] for name in self.inputs}, row[self.target]


def from_hf(
    dataset: Any,
    partition: Any = None,
    clients: int | None = None,
    seed: int = 0,
    *,
    target: str,
    inputs: str | Sequence[str] | None = None,
    client: str | None = None,
    train: str = "train",
    test: Any = None,
    transform: Transform | None = None,
    collate: Collate | None = None,
    lazy: bool | None = None,
) -> FederatedData:
    """A ``datasets.Dataset`` or ``DatasetDict``, or a ``FederatedDataset`` of ``flwr_datasets``, partitioned among clients.

    Nothing is downloaded but what a ``FederatedDataset`` downloads by itself. Images become bytes [C, H, W].

    Args:
        dataset: a ``FederatedDataset`` brings its own partition.
        partition: one of fedvra's, or a partitioner of ``flwr_datasets`` such as ``DirichletPartitioner``.
        clients: how many; a partitioner knows by itself.
        target: the column to predict.
        inputs: the column to predict it from; or several, given to the model by name; None takes all others.
        client: instead of a partition, the column that says whose a row is.
        train: which split of a ``DatasetDict`` or ``FederatedDataset`` to train on.
        test: data to evaluate on, or the name of a split of it; None: the split "test" of a ``DatasetDict`` that has one.
        transform, collate, lazy: as for :func:`fedvra.split`.

    >>> import pytest; _ = pytest.importorskip("datasets")  # the extra fedvra[datasets]
    >>> from datasets import Dataset
    >>> rows = Dataset.from_dict({"size": [0.1, 0.2, 0.3, 0.4], "label": [0, 1, 0, 1]})
    >>> from_hf(rows, "iid", clients=2, target="label").sizes.tolist()
    [2, 2]
    """
    _require_installed()
    whole, owners, test = _opened(dataset, train, test)
    owned: Partition | None = owners
    given = [client is not None, partition is not None, owned is not None]
    require(sum(given) == 1, "from_hf: give a partition, client, the column to partition by, or a FederatedDataset.")
    for name in (target, client, *([inputs] if isinstance(inputs, str) else inputs or [])):
        require(
            name is None or name in whole.column_names,
            f"from_hf: there is no column {name!r}; there are {', '.join(whole.column_names)}.",
        )
    names = [name for name in whole.column_names if name not in (target, client)] if inputs is None else inputs
    columns = names[0] if len(names) == 1 and not isinstance(names, str) else names
    labels = _labels(whole, target)
    if client is not None:
        owned = ByColumn(np.asarray(whole[client][:]))
    elif owned is None:
        owned = _dealt(partition, whole)
        clients = None if isinstance(owned, Owners) else clients
    assert owned is not None
    data = split(
        Rows(whole, columns, target),
        owned,
        clients,
        seed,
        test=None if test is None else Rows(test, columns, target),
        transform=transform,
        by=labels,
        collate=collate,
        lazy=lazy,
    )
    feature = whole.features[target]
    return replace(data, dataset=replace(data.dataset, class_names=tuple(getattr(feature, "names", None) or ())))


def _require_installed() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise UsageError("from_hf needs the package datasets: pip install 'fedvra[datasets]'.") from None


def _opened(dataset: Any, train: str, test: Any) -> tuple[Any, Owners | None, Any]:
    """The rows to train on, their owners where they are known already, and the rows to test on."""
    import datasets

    require(
        not isinstance(dataset, datasets.IterableDataset | datasets.IterableDatasetDict),
        "from_hf: a streamed data set cannot be asked for row 17, so its rows can neither be assigned to clients nor drawn at "
        "random; load it without streaming=True: it stays on disk all the same.",
    )
    if isinstance(dataset, datasets.DatasetDict):
        require(train in dataset, f"from_hf: there is no split {train!r}; there are {', '.join(dataset)}.")
        test = ("test" if "test" in dataset else None) if test is None else test
        return dataset[train], None, dataset[test] if isinstance(test, str) else test
    if isinstance(dataset, datasets.Dataset):
        require(not isinstance(test, str), f"from_hf: this data set has no splits, so test={test!r} names none.")
        return dataset, None, test
    if type(dataset).__module__.partition(".")[0] != "flwr_datasets":
        raise UsageError(f"from_hf: expected a data set of datasets or flwr_datasets, got {type(dataset).__name__}.")
    count = dataset.partitioners[train].num_partitions
    parts = [dataset.load_partition(k, train) for k in range(count)]
    owners = np.repeat(np.arange(count), [len(part) for part in parts])
    held = dataset.load_split(test) if isinstance(test, str) else test
    return datasets.concatenate_datasets(parts), Owners(owners), held


def _dealt(partition: Any, dataset: Any) -> Partition:
    """The partition, or what a partitioner of flwr_datasets makes of these rows; the user's own is left without them."""
    if type(partition).__module__.partition(".")[0] != "flwr_datasets":
        return partition  # type: ignore[no-any-return]  # split looks at it
    require(
        not partition.is_dataset_assigned(), "from_hf: this partitioner has a data set already; give it a fresh one."
    )
    mine = copy.deepcopy(partition)
    mine.dataset = dataset.add_column(ROW, np.arange(len(dataset)))
    owners = np.full(len(dataset), UNASSIGNED)
    for k in range(mine.num_partitions):
        owners[np.asarray(mine.load_partition(k)[ROW][:])] = k
    return Owners(owners)


def _labels(dataset: Any, target: str) -> NDArray[Any] | None:
    """The column of labels, where that is what it is."""
    dtype = str(getattr(dataset.features[target], "dtype", ""))
    return np.asarray(dataset[target][:]) if "int" in dtype else None
