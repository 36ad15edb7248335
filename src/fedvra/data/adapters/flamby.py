"""FLamby (Ogier du Terrail et al., 2022): data of real hospitals, one client per center."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvra.core.errors import require
from fedvra.data.dataset import Collate, FederatedData, split
from fedvra.data.partitions import ByColumn
from fedvra.data.transform import Transform

CENTERS = ("cleveland", "hungarian", "switzerland", "va")
USED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
"""Columns of the heart data that all centers have; slope, ca and thal are mostly missing outside Cleveland."""
CATEGORIES = {2: (1.0, 2.0, 3.0, 4.0), 6: (0.0, 1.0, 2.0)}
"""Columns whose numbers are names: chest pain and the resting cardiogram."""
DIAGNOSIS = 13


def from_centers(
    make: Callable[[int, bool], Any],
    centers: int,
    *,
    transform: Transform | None = None,
    collate: Collate | None = None,
) -> FederatedData:
    """One client per center of a FLamby data set that is installed and downloaded: the test data are those of all centers.

    Args:
        make: from (center, train) to a torch Dataset, e.g. ``lambda center, train: FedIXITiny(center=center, train=train)``.
        centers: how many there are (FLamby's ``NUM_CLIENTS``).

    >>> import torch
    >>> def make(center, train):
    ...     return torch.utils.data.TensorDataset(torch.zeros(3 + center, 2), torch.zeros(3 + center))
    >>> from_centers(make, 2).sizes.tolist()
    [3, 4]
    """
    from torch.utils.data import ConcatDataset

    parts = [make(center, True) for center in range(centers)]
    tests = [make(center, False) for center in range(centers)]
    owners = np.repeat(np.arange(centers), [len(part) for part in parts])
    return split(
        ConcatDataset(parts), ByColumn(owners), test=ConcatDataset(tests), transform=transform, collate=collate
    )


def from_flamby_heart(folder: str | Path, test_share: float = 0.34) -> FederatedData:
    """Fed-Heart-Disease from the files ``processed.cleveland.data`` and so on of the UCI repository, as FLamby reads them.

    Patients with missing figures are left out, chest pain and cardiogram are one-hot, figures are standardised with the mean
    and deviation of the training data of all centers, and the target is whether there is a disease. Of each center the last
    ``test_share`` of the patients are for testing, which is not FLamby's own choice of them.

    >>> data = from_flamby_heart("heart")  # doctest: +SKIP
    >>> data.clients  # doctest: +SKIP
    4
    """
    require(0 < test_share < 1, f"test_share must be between 0 and 1, got {test_share}.")
    tables = [_patients(Path(folder) / f"processed.{name}.data") for name in CENTERS]
    cuts = [len(table) - round(test_share * len(table)) for table in tables]
    train = np.concatenate([table[:cut] for table, cut in zip(tables, cuts, strict=True)])
    test = np.concatenate([table[cut:] for table, cut in zip(tables, cuts, strict=True)])
    mean, std = train[:, :-1].mean(0), np.maximum(train[:, :-1].std(0), 1e-8)

    def pair(table: Any) -> tuple[Any, Any]:
        return ((table[:, :-1] - mean) / std).astype(np.float32), (table[:, -1] > 0).astype(np.int64)

    return split(pair(train), ByColumn(np.repeat(np.arange(len(tables)), cuts)), test=pair(test), classes=2)


def _patients(path: Path) -> Any:
    """A row of figures and the diagnosis for everyone of whom all is known."""
    require(path.is_file(), f"{path} is missing: put the files processed.*.data of UCI's heart disease data there.")
    rows = []
    for number, line in enumerate(csv.reader(path.read_text(encoding="utf-8").splitlines()), 1):
        require(len(line) == DIAGNOSIS + 1, f"{path}, line {number}: expected 14 figures, got {len(line)}.")
        known: Sequence[str] = [line[k] for k in (*USED, DIAGNOSIS)]
        if "?" not in known:
            rows.append([float(figure) for figure in known])
    require(len(rows) >= 2, f"{path}: fewer than two patients of whom all is known.")
    table = np.array(rows)
    wide = [
        (table[:, [k]] == np.array(CATEGORIES[k])).astype(float) if k in CATEGORIES else table[:, [k]]
        for k in range(len(USED))
    ]
    return np.column_stack([*wide, table[:, -1]])
