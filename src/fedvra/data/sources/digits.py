"""The digits inside scikit-learn: 1,797 handwritten digits of 8 x 8 pixels, nothing to download.

The values 0..16 are kept as bytes; a fifth of every class, the same on every machine, is set aside for testing.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.sources.source import SOURCES, Arrays, Source

TEST_SHARE = 0.2


def read(folder: Path) -> Arrays:
    """Images [n, 1, 8, 8] and labels; ``folder`` is not looked at."""
    table = _table()
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    test = _stratified_test(labels)
    return Arrays(images[~test], labels[~test], images[test], labels[test])


def _table() -> NDArray[np.uint8]:
    """One row per image, 64 pixels and the label.

    Read straight from scikit-learn's folder when it lies where it has lain for a decade: importing scikit-learn for it
    would take a second.
    """
    spec = find_spec("sklearn")
    for place in (spec.submodule_search_locations or []) if spec else []:
        packed = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if packed.is_file():
            with gzip.open(packed, "rt") as lines:
                return np.loadtxt(lines, delimiter=",").astype(np.uint8)
    return _table_through_the_library()


def _table_through_the_library() -> NDArray[np.uint8]:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)


def _stratified_test(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """True for a random fifth of each class."""
    rng = stream(0, Purpose.PARTITION)
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        members: Ints = np.flatnonzero(labels == label)
        test[rng.permutation(members)[: round(TEST_SHARE * len(members))]] = True
    return test


SOURCES.add(
    "digits",
    Source(
        name="digits",
        description="1,797 handwritten digits, 8 x 8 grey, 10 classes; comes with scikit-learn",
        read=read,
        classes=tuple("0123456789"),
        # Mean and deviation of all pixels, 4.8842 and 6.0168 on their scale of 0..16; a transform counts in units of 255.
        transform={"mean": (4.8842 / 255,), "std": (6.0168 / 255,)},
    ),
)
