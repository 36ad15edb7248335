"""Samples of any kind and size that a function makes batches of; and the problems that need one array."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.data.picture import class_counts
from fedvra.local.protocol import SolverSettings
from token_samples import AGE, IDS, LABELS, TOKENS, Items, N, feed, same

LENGTHS = 1 + np.arange(N) % 4
RAGGED = [(torch.arange(float(length)), int(label)) for length, label in zip(LENGTHS, LABELS, strict=True)]


def padded(samples: list[Any]) -> Any:
    sequences, labels = zip(*samples, strict=True)
    lengths = np.array([len(each) for each in sequences])
    return {"x": pad_sequence(sequences, batch_first=True), "lengths": lengths}, torch.tensor(labels)


def test_samples_of_any_size_are_collated() -> None:
    data = fv.split(RAGGED, fv.Shards(2), 3, test=Items(RAGGED[:5]), collate=padded)
    np.testing.assert_array_equal(data.indices, fv.split((AGE, LABELS), fv.Shards(2), 3).indices)
    assert (len(data.dataset), data.dataset.test_samples, data.dataset.classes) == (N, 5, 3)
    assert class_counts(data).sum() == N
    source = feed(data, dtype=torch.float64, channels_last=True)
    assert not source.stacks
    rows = np.array([3, 0, 6])
    inputs, targets = source.batch(rows)
    expected, labels = padded([RAGGED[k] for k in rows])
    assert same(inputs, {"x": expected["x"].double(), "lengths": torch.from_numpy(expected["lengths"])})
    assert same(targets, labels)
    assert source.test_batch(slice(3, 9), torch.float32)[0]["x"].dtype == torch.float32
    assert source.test_batch(slice(3, 9))[1].tolist() == LABELS[3:5].tolist()


def test_a_collate_may_give_other_mappings_and_what_is_no_array() -> None:
    def collate(samples: list[Any]) -> Any:
        packed = pack_sequence([x for x, _ in samples], enforce_sorted=False)
        return [UserDict(x=packed, lengths=[len(x) for x, _ in samples], hint=None), np.float64(len(samples))]

    inputs, targets = feed(fv.split(RAGGED, fv.IID(), 3, collate=collate), dtype=torch.float64).batch(np.arange(3))
    assert type(inputs) is dict
    assert inputs["x"].data.dtype == torch.float64
    assert (inputs["lengths"], inputs["hint"]) == ([1, 2, 3], None)
    assert same(targets, torch.tensor(3.0, dtype=torch.float64))


def test_samples_of_words_go_by_labels_that_are_given() -> None:
    samples = [("a" * length, {"n": length}) for length in LENGTHS]

    def collate(given: list[Any]) -> Any:
        return torch.tensor([[len(word)] for word, _ in given]).float(), torch.tensor([each["n"] for _, each in given])

    data = fv.split(samples, fv.Shards(2), 3, by=LABELS, collate=collate)
    np.testing.assert_array_equal(data.indices, fv.split((AGE, LABELS), fv.Shards(2), 3).indices)
    assert data.dataset.classes is None
    assert feed(data).batch(np.array([1]))[0].tolist() == [[2.0]]
    assert fv.split(samples, fv.IID(), 3, collate=collate).sizes.tolist() == [4, 4, 4]
    with pytest.raises(UsageError, match="by=labels"):
        fv.split(samples, fv.Shards(2), 3, collate=collate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collate": lambda samples: samples[0][0]}, r"collate must return a pair \(inputs, targets\), got Tensor"),
        ({"collate": 3}, "collate must be a function"),
        ({"dataset": [1, 2]}, "sample 0 is int, but every sample must be a pair"),
        ({"dataset": []}, "there are no samples"),
        ({"dataset": {"x": 1}}, "expected a list or a Dataset of samples"),
        ({"test": [RAGGED[0], 3]}, "the test data: sample 1 is int"),
        ({"test": [(torch.zeros(2), 7)]}, "the test data: labels run from 7 to 7"),
        ({"test": [(torch.zeros(2), 1.5)]}, "the test data: targets must be one integer label"),
        ({"transform": fv.Transform((0.5,), (0.5,))}, "normalises or augments needs inputs that are one array"),
        ({"dataset": fv.Dataset("own", {"x": IDS}, LABELS)}, "inputs and targets are lists of the same length"),
        ({"by": LABELS[1:]}, "by= must hold one label per sample"),
    ],
)
def test_what_cannot_be_collated_is_refused(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"dataset": RAGGED, "partition": fv.IID(), "clients": 2, "collate": padded} | change
    with pytest.raises(UsageError, match=message):
        fv.split(**options)


# -- who needs one array --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [fv.split((TOKENS, LABELS), fv.IID(), 3), fv.split(RAGGED, fv.IID(), 3, collate=padded)]
)
def test_problems_that_need_one_array_say_so(data: fv.FederatedData) -> None:
    with pytest.raises(UsageError, match="Clustering needs inputs and targets that are one array each"):
        fv.Clustering(data, 2)
    with pytest.raises(UsageError, match="SemiSupervised needs inputs and targets that are one array each"):
        fv.SemiSupervised(nn.Linear(5, 3)).check(data, SolverSettings())


def test_semi_supervised_learning_takes_no_label_to_ignore() -> None:
    data = fv.split((IDS.astype(np.float32), np.where(LABELS == 1, -100, LABELS)), fv.IID(), 3)
    with pytest.raises(UsageError, match="SemiSupervised needs classes"):
        fv.SemiSupervised(nn.Linear(5, 3)).check(data, SolverSettings())


def test_clusters_are_judged_by_the_samples_that_have_a_label() -> None:
    labels = np.where(np.arange(N) < 6, LABELS % 2, -100)
    data = fv.split((labels[:, None] + np.zeros((N, 2)), labels), fv.IID(), 3)
    problem = fv.Clustering(data, 3)
    found = problem.report(problem.x_start(), problem.y_start)
    assert found["clustering_accuracy"] == 1.0
