"""Data that are read as they are needed: the same numbers to the bit, little memory, and reading while computing."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.data import lazy
from fedvra.data.ahead import BATCHES_AHEAD, ahead

N = 90
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(N, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(N) % 3
TEST = (IMAGES[:20], LABELS[:20])


class Items(torch.utils.data.Dataset[Any]):
    """Samples made one by one, which tells who asked."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], int(self.targets[index])


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, 3))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def run(data: fv.FederatedData, make: Any = net, **settings: Any) -> fv.History:
    given: dict[str, Any] = {"batch_size": 4, "work": fv.Epochs(2), "workers": 1, "rounds": 3} | settings
    return fv.simulate(
        fv.FedVRA(gamma=0.1, a=2, d=2), problem=fv.Supervised(make), data=data, sampler=fv.Uniform(3), lr=0.05, **given
    )


def mapped(folder: Path, array: Any = IMAGES) -> Any:
    np.save(folder / "images.npy", array)
    return np.load(folder / "images.npy", mmap_mode="r")


def by_hand(folder: Path, transform: fv.Transform | None) -> dict[str, fv.FederatedData]:
    """The same clients from files, from a Dataset and from a function."""
    known = fv.split((IMAGES, LABELS), fv.Shards(2), 6, seed=1)
    in_order = [known.part(k) for k in range(6)]
    file = mapped(folder)
    return {
        "file": fv.split((file, LABELS), fv.Shards(2), 6, seed=1, test=(file[:20], LABELS[:20]), transform=transform),
        "items": fv.split(
            Items(torch.from_numpy(IMAGES), LABELS),
            fv.Shards(2),
            6,
            seed=1,
            by=LABELS,
            test=Items(torch.from_numpy(IMAGES[:20]), LABELS[:20]),
            transform=transform,
            lazy=True,
        ),
        "function": fv.per_client(
            lambda i: (IMAGES[in_order[i]], LABELS[in_order[i]]),
            sizes=[len(part) for part in in_order],
            test=TEST,
            transform=transform,
        ),
    }


@pytest.mark.parametrize("path", ["block", "traced", "eager"])
@pytest.mark.parametrize("augment", [False, True])
def test_the_same_bits_as_from_memory(path: str, augment: bool, tmp_path: Path) -> None:
    transform = fv.Transform((0.5,), (0.25,), crop_padding=1, flip=True) if augment else None
    make = net if path == "block" else conv
    settings: dict[str, Any] = {"solver": fv.SolverSettings(path=path)}
    known = run(fv.split((IMAGES, LABELS), fv.Shards(2), 6, seed=1, test=TEST, transform=transform), make, **settings)
    for name, data in by_hand(tmp_path, transform).items():
        history = run(data, make, **settings)
        assert history.path == known.path, name
        assert torch.equal(history.x0, known.x0), name
        assert [m["test_loss"] for m in history.metrics] == [m["test_loss"] for m in known.metrics], name


def test_odd_batches_of_a_large_model_and_workers(tmp_path: Path) -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 4000), nn.ReLU(), nn.Linear(4000, 3))

    known = run(fv.split((IMAGES, LABELS), fv.IID(), 7), wide, rounds=1)
    lazily = run(fv.split((mapped(tmp_path), LABELS), fv.IID(), 7), wide, rounds=1, workers=2)
    assert known.path is not None
    assert known.path.name == "traced"
    assert torch.equal(lazily.x0, known.x0)


def test_a_resume_or_a_cluster_carries_the_file_not_its_content(tmp_path: Path) -> None:
    data = fv.split((mapped(tmp_path), LABELS), fv.IID(), 5)
    sent = pickle.dumps(data)
    assert len(sent) < 10_000
    for twin in (pickle.loads(sent), copy.deepcopy(data)):
        assert twin == data
        assert torch.equal(twin.dataset.take(np.arange(9))[0], torch.from_numpy(IMAGES[:9]))


@pytest.mark.parametrize("rows", [slice(10, 40), slice(None), slice(85, None)])
def test_slices_of_mapped_files_and_other_byte_orders(rows: slice, tmp_path: Path) -> None:
    values = RNG.normal(size=(N, 5)).astype(">f4")
    file = mapped(tmp_path, values)[rows]
    data = fv.split((file, LABELS[rows]), fv.IID(), 2).dataset
    numbers = np.array([4, 0, 1, 2])
    assert torch.equal(data.take(numbers)[0], torch.from_numpy(values[rows][numbers].astype("f4")))
    assert data.inputs.is_meta
    assert data.labels is not None


def test_trees_of_mapped_files(tmp_path: Path) -> None:
    file = mapped(tmp_path)
    data = fv.split(({"a": file, "b": LABELS}, (file, LABELS)), fv.IID(), 2).dataset
    inputs, targets = data.take(np.array([7, 3]))
    assert torch.equal(inputs["a"], torch.from_numpy(IMAGES[[7, 3]]))
    assert inputs["b"].tolist() == LABELS[[7, 3]].tolist()
    assert torch.equal(targets[0], torch.from_numpy(IMAGES[[7, 3]]))


def test_samples_of_any_size_are_collated_as_they_are_read() -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(x[:4], dtype=torch.float32) for x, _ in samples]), torch.tensor(
            [y for _, y in samples]
        )

    items = Items([np.arange(4.0 + k % 3) for k in range(12)], LABELS[:12])
    pair = [fv.split(items, fv.IID(), 3, collate=collate, test=items, lazy=flag) for flag in (False, True)]
    assert [each.dataset.reader is None for each in pair] == [True, False]
    assert len(pair[1].dataset) == pair[1].dataset.test_samples == 12
    runs = [run(each, lambda: nn.Linear(4, 3)) for each in pair]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert runs[0].metrics[-1]["test_loss"] == runs[1].metrics[-1]["test_loss"]


def test_what_does_not_fit_is_read_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    items = Items(torch.from_numpy(IMAGES), LABELS)
    assert fv.split(items, fv.IID(), 3).dataset.reader is None
    monkeypatch.setattr(lazy, "available_memory", lambda: 4 * IMAGES.nbytes)
    assert fv.split(items, fv.IID(), 3).dataset.reader is not None
    assert fv.split(items, fv.IID(), 3, lazy=False).dataset.reader is None


def test_the_next_batches_are_read_while_a_step_is_computed() -> None:
    """The first loss of a round waits until all of its batches were asked for, which without a thread would be never."""
    asked, enough = [0], threading.Event()

    class Counting(Items):
        def __getitem__(self, index: int) -> Any:
            asked[0] += 1
            if asked[0] >= 3 * 4:
                enough.set()
            return super().__getitem__(index)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert enough.wait(30), "nobody read ahead"
        return nn.functional.cross_entropy(outputs, targets)

    data = fv.split(Counting(torch.from_numpy(IMAGES).float(), LABELS), fv.IID(), 3, lazy=True)
    enough.set()  # whoever looks at the model first
    experiment = fv.Experiment(
        fv.FedAvg(),
        fv.Supervised(net(), loss=loss),
        fv.Uniform(1),
        fv.Steps(3),
        data,
        batch_size=4,
        solver=fv.SolverSettings(path="eager"),
    )
    federation = fv.Federation(experiment, workers=1)
    enough.clear()
    asked[0] = 0
    federation.round()
    federation.close()
    assert asked[0] == 12


def test_no_more_is_read_ahead_than_said() -> None:
    made: list[int] = []

    def make(k: int) -> int:
        made.append(k)
        return k

    coming = ahead(make, range(20))
    assert next(coming) == 0
    coming.close()  # type: ignore[attr-defined]
    assert len(made) <= BATCHES_AHEAD + 2
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda k: 1 // k, [1, 0, 1]))


def test_a_function_per_client_is_asked_when_it_is_the_clients_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def read(client: int) -> Any:
        asked.append(client)
        return IMAGES[client * 30 : client * 30 + 30], LABELS[:30]

    reader = lazy.ClientReader(read, np.array([30, 30, 30]), kept=1)
    inputs, _ = reader.take(np.array([31, 2, 89]))
    assert torch.equal(inputs, torch.from_numpy(IMAGES[[31, 2, 89]]))
    assert asked == [1, 0, 2]
    reader.take(np.array([80, 81]))
    assert asked == [1, 0, 2], "the last one is kept"
    reader.take(np.array([0]))
    assert asked == [1, 0, 2, 0], "and no more than that"


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(2), 0)])


class Noisy(Items):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(3), 0


class Broken(Items):
    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float("nan") if index == 5 else 1.0), 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": Stream()}, "an IterableDataset gives its samples in its own order"),
        ({"dataset": Stream(), "lazy": True}, "an IterableDataset gives its samples in its own order"),
        ({"dataset": Stream(), "collate": len}, "an IterableDataset gives its samples in its own order"),
        ({"dataset": (IMAGES, LABELS), "lazy": True}, "these arrays are in memory"),
        ({"dataset": Noisy(IMAGES, LABELS), "lazy": True}, "not the same when it is read a second time"),
        ({"dataset": Items(IMAGES, LABELS), "lazy": True, "partition": fv.Dirichlet(1.0)}, "give the labels"),
        ({"dataset": 3, "lazy": True}, "needs a Dataset with a length"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fv.split(**({"partition": fv.IID(), "clients": 3} | given))


def test_more_refusals(tmp_path: Path) -> None:
    file = mapped(tmp_path)
    with pytest.raises(UsageError, match="rows of a file in C order"):
        fv.split((file[:, :, :4], LABELS), fv.IID(), 3)
    with pytest.raises(UsageError, match="needs one row per sample"):
        fv.split((file, LABELS[:-1]), fv.IID(), 3)
    data = fv.split((file, LABELS), fv.IID(), 3)
    with pytest.raises(UsageError, match="must be in memory"):
        fv.Clustering(data, 3)
    (tmp_path / "images.npy").write_bytes(b"")
    with pytest.raises(UsageError, match="ends before its last row"):
        data.dataset.take(np.array([50]))
    (tmp_path / "images.npy").unlink()
    with pytest.raises(UsageError, match="is the file still there"):
        pickle.loads(pickle.dumps(data)).dataset.take(np.array([0]))
    with pytest.raises(UsageError, match="sample 5 of the data holds NaN"):
        run(fv.split(Broken(IMAGES, LABELS), fv.IID(), 3, lazy=True), lambda: nn.Linear(3, 3))
    with pytest.raises(UsageError, match="was said to hold 2 samples, and its function gave 3"):
        fv.per_client(lambda i: (np.zeros((3, 1)), np.zeros(3)), sizes=[2])
    with pytest.raises(UsageError, match="1 or more"):
        fv.per_client(lambda i: (np.zeros((3, 1)), np.zeros(3)), sizes=[2, 0])
    with pytest.raises(UsageError, match="must be a function"):
        fv.per_client([1, 2], sizes=[2, 0])  # type: ignore[arg-type]


def test_a_file_far_larger_than_the_memory_that_training_takes() -> None:
    """A sparse file of 2 GB, of which a run reads 300 MB, in a process whose data may take 200 MB more than at the start."""
    script = Path(__file__).parent / "large_file.py"
    done = subprocess.run(
        [sys.executable, str(script), "--gigabytes", "2", "--clients", "40", "--rounds", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read, grown = (float(word) for word in done.stdout.split()[:2])
    assert read > 300
    assert grown < 200
