"""What split() accepts and refuses, and the picture of its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError
from fedvra.data.dataset import Dataset, FederatedData, Transform, split
from fedvra.data.partitions import IID, ByColumn, Dirichlet, Partition, QuantitySkew, Shards
from fedvra.data.picture import class_counts, picture


def pair(samples: int = 12, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(samples, 4)), np.arange(samples) % classes


def test_split_groups_the_samples_by_owner() -> None:
    data = split(pair(), IID(), clients=5, seed=1)
    owners = IID().assign(np.arange(12) % 3, 5, 1)
    assert data.clients == 5
    assert data.sizes.tolist() == [2] * 5
    for client in range(5):
        np.testing.assert_array_equal(data.part(client), np.flatnonzero(owners == client))
    with pytest.raises(UsageError, match="no client 5"):
        data.part(5)


def test_arrays_keep_their_type_and_are_not_copied() -> None:
    inputs, targets = pair()
    data = split((inputs, targets.astype(np.int32)), IID(), 3).dataset
    assert data.inputs.dtype == torch.float64
    assert data.targets.dtype == torch.int64
    assert data.inputs.data_ptr() == inputs.ctypes.data
    inputs.flags.writeable = False
    frozen = split((inputs[::-1], targets), IID(), 3).dataset.inputs
    np.testing.assert_array_equal(frozen.numpy(), inputs[::-1])


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_torch_datasets_are_read_item_by_item() -> None:
    inputs, targets = pair()
    expected = split((inputs, targets), IID(), 3)
    for form in (
        TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets)),
        Pairs([(torch.from_numpy(x), int(y)) for x, y in zip(inputs, targets, strict=True)]),
        Pairs([(x, torch.tensor(y)) for x, y in zip(inputs, targets, strict=True)]),
    ):
        data = split(form, IID(), 3, test=form)
        assert torch.equal(data.dataset.inputs, expected.dataset.inputs)
        assert torch.equal(data.dataset.targets, expected.dataset.targets)
        assert data.dataset.test_targets is not None
        np.testing.assert_array_equal(data.indices, expected.indices)


def test_pictures_become_bytes_with_channels_first() -> None:
    from PIL import Image

    colour = np.random.default_rng(0).integers(256, size=(2, 5, 4, 3), dtype=np.uint8)
    data = split(Pairs([(Image.fromarray(image), 0) for image in colour]), IID(), 2).dataset
    assert data.inputs.dtype == torch.uint8
    np.testing.assert_array_equal(data.inputs.numpy(), colour.transpose(0, 3, 1, 2))
    grey = split(Pairs([(Image.fromarray(colour[0, :, :, 0]), 0)]), IID(), 1).dataset
    assert grey.inputs.shape == (1, 1, 5, 4)


def test_labels_as_a_column_and_regression_targets() -> None:
    inputs, targets = pair()
    column = split((inputs, targets[:, None]), Shards(2), 3)
    assert column.dataset.targets.shape == (12, 1), "the loss is given what was given"
    np.testing.assert_array_equal(column.indices, split((inputs, targets), Shards(2), 3).indices)
    regression = split((inputs, inputs[:, :2]), IID(), 3)
    assert regression.dataset.classes is None
    assert class_counts(regression).shape == (3, 1)
    with pytest.raises(UsageError, match="one integer label per sample"):
        split((inputs, inputs[:, 0]), Dirichlet(1.0), 3)


def spoilt(position: int, value: float) -> np.ndarray:
    inputs, _ = pair()
    inputs[position, 2] = value
    return inputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": (spoilt(7, np.nan), pair()[1])}, r"NaN or infinity in 1 of 12 samples \(first: sample 7\)"),
        ({"dataset": (spoilt(2, np.inf), pair()[1])}, "NaN or infinity"),
        ({"dataset": (pair()[0], np.full(12, np.nan))}, "the targets hold NaN"),
        ({"dataset": (pair()[0], pair()[1][:-1])}, "12 inputs and 11 targets"),
        ({"dataset": (pair()[0], pair()[1] - 1)}, "labels run from -1 to 1, outside 0..1"),
        ({"classes": 2}, "labels run from 0 to 2, outside 0..1"),
        ({"test": (pair()[0], pair()[1] + 1)}, "the test data: labels run from 1 to 3"),
        ({"test": (pair()[0][:, :3], pair()[1])}, "they must agree"),
        ({"test": (spoilt(0, np.nan), pair()[1])}, "the test data: the inputs hold NaN"),
        ({"dataset": (np.zeros((0, 4)), np.zeros(0, dtype=int))}, "no samples"),
        ({"dataset": Pairs([])}, "no samples"),
        ({"dataset": (pair()[0], np.array(["cat"] * 12))}, "turn names into integers"),
        ({"dataset": Pairs([1, 2])}, "must be a pair"),
        ({"dataset": Pairs([(np.zeros(2), 0), (np.zeros(3), 0)])}, "different shapes"),
        ({"dataset": 3}, "expected a pair"),
        ({"dataset": iter([])}, "expected a pair"),
        ({"transform": Transform((0.0, 0.0), (1.0, 1.0))}, "normalises 2 channels"),
        ({"clients": 13}, "ask for at most 12 clients"),
        ({"clients": None}, "how many clients"),
    ],
)
def test_split_refuses_bad_data(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"dataset": pair(), "partition": IID(), "clients": 3} | change
    with pytest.raises(UsageError, match=message):
        split(**settings)


class Careless(Partition):
    def __init__(self, owners: list[int]) -> None:
        self.owners = np.array(owners)

    def assign(self, targets: np.ndarray, clients: int | None, seed: int) -> Ints:
        return self.owners


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0] * 6 + [2] * 6, "1 of 3 clients would hold no data \\(first: client 1\\)"),
        ([0, 1, 2, 3] * 3, "assigned samples to client 3"),
        ([0, 1, 2], "one per sample"),
    ],
)
def test_split_checks_the_partition(owners: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(pair(), Careless(owners), 3)


def test_split_by_column_counts_the_clients_itself() -> None:
    data = split(pair(), ByColumn(np.repeat([10, 20, 30], 4)))
    assert [data.part(client).tolist() for client in range(data.clients)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


def test_a_million_clients_fit_in_flat_arrays() -> None:
    count = 1_000_000
    data = split((np.zeros((count, 1), dtype=np.float32), np.zeros(count, dtype=np.int64)), IID(), count)
    assert data.clients == count
    assert (data.sizes == 1).all()
    assert data.offsets.nbytes + data.indices.nbytes < 17_000_000


# --- the picture


def test_the_picture_counts_right_and_is_written_whole(tmp_path: Path) -> None:
    data = split(pair(90), QuantitySkew(power=1.0), 4)
    counts = class_counts(data)
    for client in range(4):
        np.testing.assert_array_equal(counts[client], np.bincount(data.dataset.targets[data.part(client)], minlength=3))
    path = picture(data, tmp_path / "new" / "who.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [each.name for each in path.parent.iterdir()] == ["who.png"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another place"):
        picture(data, tmp_path / "file" / "who.png")


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (300, 15), (5, 40)])
def test_the_picture_takes_any_number_of_clients_and_classes(tmp_path: Path, clients: int, classes: int) -> None:
    data = split(pair(600, classes), IID(), clients)
    assert picture(data, tmp_path / "who.png").stat().st_size > 1000


def test_federated_data_holds_plain_arrays() -> None:
    dataset = Dataset("own", torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    data = FederatedData(dataset, np.array([0, 1, 3]), np.array([2, 0, 1]))
    assert len(dataset) == 3
    assert (data.clients, data.sizes.tolist(), data.part(1).tolist()) == (2, [1, 2], [0, 1])
