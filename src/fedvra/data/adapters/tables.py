"""Tables with a column that says whose each row is: pandas, CSV, Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.errors import UsageError, require
from fedvra.data.dataset import Dataset, FederatedData, split
from fedvra.data.partitions import ByColumn
from fedvra.data.partitions.base import Partition
from fedvra.data.transform import Transform


def from_table(
    source: Any,
    *,
    target: str,
    client: str | None = None,
    inputs: Sequence[str] | None = None,
    test: Any = None,
    partition: Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
    transform: Transform | None = None,
) -> FederatedData:
    """A pandas DataFrame, or the path of a CSV or Parquet file, partitioned by a column of it.

    Args:
        source: one row per sample.
        target: the column to predict. Names and whole numbers are classes, in sorted order; other numbers are for a regression,
            a column [n, 1].
        client: the column that says whose a row is: one client per value, in sorted order.
        inputs: the columns to predict it from, numbers; None takes all others.
        test: a table to evaluate on.
        partition, clients, seed: instead of ``client``, as for :func:`fedvra.split`; ``clients`` assigns whole values to fewer.

    >>> import pandas
    >>> visits = pandas.DataFrame({"hospital": ["a", "b", "a"], "age": [50, 60, 70], "ill": ["no", "yes", "yes"]})
    >>> data = from_table(visits, client="hospital", target="ill")
    >>> data.sizes.tolist(), data.dataset.class_names, data.dataset.inputs.tolist()
    ([2, 1], ('no', 'yes'), [[50.0], [60.0], [70.0]])
    """
    require(
        (client is None) != (partition is None), "from_table: give client, the column to partition by, or a partition."
    )
    columns = None if inputs is None else [*inputs, target, *([] if client is None else [client])]
    frame = _frame(source, columns)
    names = [name for name in frame.columns if name not in (target, client)] if inputs is None else list(inputs)
    require(bool(names), "from_table: there is no column to predict from.")
    for name in (target, client):
        require(name is None or name in frame.columns, _no_column(name, frame))
    known = _classes(frame[target])
    data = _dataset(frame, names, target, known)
    if test is not None:
        other = _dataset(_frame(test, [*names, target]), names, target, known)
        data = replace(data, test_inputs=other.inputs, test_targets=other.targets)
    division = partition
    if client is not None:
        require(not frame[client].isna().any(), f"from_table: column {client!r} has empty cells; drop those rows.")
        division = ByColumn(np.asarray(frame[client].tolist()))
    assert division is not None
    return split(data, division, clients, seed, transform=transform)


def _dataset(frame: Any, names: list[str], target: str, classes: tuple[Any, ...] | None) -> Dataset:
    for name in (*names, target):
        require(name in frame.columns, _no_column(name, frame))
    for name in names:
        require(
            frame[name].dtype.kind in "biuf",
            f"from_table: column {name!r} holds {frame[name].dtype}, and inputs are numbers: leave it out (inputs=[...]), or "
            "turn it into numbers, e.g. with pandas.get_dummies.",
        )
    for name in (*names, target):
        count = int(frame[name].isna().sum())
        require(count == 0, f"from_table: column {name!r} has {count} empty cells; drop those rows or fill them.")
    inputs = torch.from_numpy(frame[names].to_numpy(dtype=np.float32, copy=True))
    return Dataset("table", inputs, _targets(frame[target], classes), class_names=tuple(map(str, classes or ())))


def _classes(column: Any) -> tuple[Any, ...] | None:
    """The values of a column of names, truth values or whole numbers; None of other numbers."""
    return None if column.dtype.kind == "f" else tuple(sorted(column.dropna().unique().tolist()))


def _targets(column: Any, classes: tuple[Any, ...] | None) -> Tensor:
    if classes is None:
        return torch.from_numpy(column.to_numpy(dtype=np.float32, copy=True)[:, None])
    places = {value: k for k, value in enumerate(classes)}
    values = column.tolist()
    unknown = next((value for value in values if value not in places), None)
    require(
        unknown is None, f"from_table: {unknown!r} is no class of the training data: {', '.join(map(str, classes))}."
    )
    return torch.tensor([places[value] for value in values])


def _frame(source: Any, columns: list[str] | None) -> Any:
    """The table, read where it is a file: a Parquet file only as far as it is needed."""
    try:
        import pandas
    except ImportError:
        raise UsageError("tables need pandas: pip install 'fedvra[pandas]'.") from None
    if isinstance(source, pandas.DataFrame):
        return source
    require(isinstance(source, str | Path), f"from_table: give a DataFrame or a path, got {type(source).__name__}.")
    path = Path(source)
    require(path.suffix in (".csv", ".parquet"), f"from_table: {path} is neither .csv nor .parquet.")
    try:
        return pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path, columns=columns)
    except OSError as error:
        raise UsageError(f"from_table: {path} cannot be read ({error.strerror or error}).") from None
    except ImportError:
        raise UsageError("Parquet files need pyarrow: pip install 'fedvra[tables]'.") from None
    except ValueError as error:
        raise UsageError(f"from_table: {path} cannot be read: {str(error).splitlines()[0]}") from None


def _no_column(name: str | None, frame: Any) -> str:
    return f"from_table: there is no column {name!r}; there are {', '.join(map(str, frame.columns))}."
