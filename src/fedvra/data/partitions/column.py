"""A natural split: the data say themselves who they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import frozen_array
from fedvra.data.partitions.base import Partition


@dataclass(frozen=True)
class ByColumn(Partition):
    """One client per distinct value of a column (writer, hospital, device), in sorted order of the values.

    ``values`` has one entry per sample: strings or numbers. With fewer ``clients`` than distinct values the values are
    assigned in a random order to the clients in turn, so that each client has whole values and none is empty.

    >>> import numpy as np
    >>> ByColumn(["ann", "bob", "ann", "cy"]).assign(np.zeros(4), clients=None, seed=0)
    array([0, 1, 0, 2])
    """

    values: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen_array(self.values, None, "ByColumn: values"))

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        column = np.asarray(self.values)
        if column.dtype == np.object_ and all(isinstance(value, str) for value in column.flat):
            column = column.astype(str)  # as pandas gives a column of strings
        require(
            column.shape == (len(targets),),
            f"ByColumn: values must hold one entry per sample, got shape {list(column.shape)} "
            f"for {len(targets)} samples.",
        )
        if np.issubdtype(column.dtype, np.floating):
            require(
                bool(np.isfinite(column).all()), "ByColumn: values must not hold NaN or infinity; drop those samples."
            )
        require(column.dtype != np.object_, "ByColumn: values must be all strings or all numbers, not a mixture.")
        distinct, codes = np.unique(column, return_inverse=True)
        if clients is None:
            return codes.astype(np.int64)
        require(
            1 <= clients <= len(distinct),
            f"ByColumn: {clients} clients were asked for and the column has {len(distinct)} distinct values: "
            f"ask for 1 to {len(distinct)} clients, or leave clients out for one per value.",
        )
        if clients == len(distinct):
            return codes.astype(np.int64)
        group = stream(seed, Purpose.PARTITION).permutation(len(distinct)) % clients
        return np.asarray(group[codes], dtype=np.int64)
