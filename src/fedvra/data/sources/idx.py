"""The IDX format of MNIST and its relatives: a short header, then the bytes of one array."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.errors import require
from fedvra.data.sources.files import File
from fedvra.data.sources.source import Arrays

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def mnist_like_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[File, ...]:
    """The four files of a data set of MNIST's shape, from their SHA-256."""
    return (
        File(TRAIN_IMAGES, 16 + 60_000 * 784, train_images),
        File(TRAIN_LABELS, 8 + 60_000, train_labels),
        File(TEST_IMAGES, 16 + 10_000 * 784, test_images),
        File(TEST_LABELS, 8 + 10_000, test_labels),
    )


def read_mnist_like(folder: Path) -> Arrays:
    """Images [n, 1, 28, 28] and labels, mapped into memory rather than read: pages load when a batch touches them."""
    return Arrays(
        read_idx(folder / TRAIN_IMAGES)[:, None],
        read_idx(folder / TRAIN_LABELS),
        read_idx(folder / TEST_IMAGES)[:, None],
        read_idx(folder / TEST_LABELS),
    )


def read_idx(path: Path) -> NDArray[Any]:
    """Map an IDX file of unsigned bytes. Copy-on-write: writing to the array never reaches the file.

    The header is two zero bytes, the type (8: unsigned byte), the number of dimensions, then each as a big-endian uint32.
    """
    with path.open("rb") as file:
        start = file.read(4)
        require(
            len(start) == 4 and start[:3] == b"\0\0\x08",
            f"{path} is not an IDX file of bytes; delete it and get it anew.",
        )
        shape = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
        offset = file.tell()
    # As a plain array: np.memmap would drag its own class through every slice.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="c", offset=offset, shape=shape))
