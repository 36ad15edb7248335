"""Federated clustering: clouds of points that are generated, and handwritten digits without their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedvra.tasks.base import TASKS, Task

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset
    from fedvra.problems.base import Problem
    from fedvra.runs.options import RunConfig

BLOBS, DIMENSIONS, POINTS = 8, 5, 2000


def blobs(seed: int) -> Dataset:
    """Eight clouds of unit width in five dimensions, whose centres are at least eight widths from each other."""
    import numpy as np
    import torch

    from fedvra.core.streams import Purpose, stream
    from fedvra.data.dataset import Dataset

    rng = stream(seed, Purpose.SYNTHETIC)
    centres: list[Any] = []
    while len(centres) < BLOBS:
        centre = rng.uniform(-10, 10, size=DIMENSIONS)
        if all(np.linalg.norm(centre - other) >= 8 for other in centres):
            centres.append(centre)
    labels = np.arange(POINTS) % BLOBS
    points = np.array(centres)[labels] + rng.normal(size=(POINTS, DIMENSIONS))
    return Dataset("blobs", torch.tensor(points, dtype=torch.float32), torch.from_numpy(labels), classes=BLOBS)


def make_blobs(config: RunConfig) -> tuple[Problem, Any]:
    return _clustering(blobs(config.seed), config)


def make_digits(config: RunConfig) -> tuple[Problem, Any]:
    from fedvra.data.sources import load

    return _clustering(load("digits", config.data), config)


def _clustering(dataset: Dataset, config: RunConfig) -> tuple[Problem, Any]:
    """As many clusters as there are classes; the labels decide the partition, and are then forgotten."""
    from fedvra.data.dataset import split
    from fedvra.data.partitions import parse_partition
    from fedvra.problems.clustering import Clustering

    data = split(dataset, parse_partition(config.split), clients=config.clients, seed=config.seed)
    return Clustering(data, data.dataset.classes or 2, seed=config.seed), None


DEFAULTS = {
    "algorithm": "fedvra-u",
    "clients": 50,
    "steps": 5,
    "batch_size": "full",
    "lr": 0.5,  # the cost is 1-smooth in the centroids, whatever the data
    "weight_decay": 0.0,
    "weights": "samples",
}
# (a + d)*gamma*eta*Q~ = 1.6 where ten of 50 take part: about what Remark 1 asks for.
SETTINGS = {"fedvra-u": {"gamma": 0.1, "a": 2}}

TASKS.add(
    "blobs-clustering",
    Task(
        "eight clouds of points, found without labels",
        make_blobs,
        {**DEFAULTS, "rounds": 30, "targets": (90, 99)},
        SETTINGS,
    ),
)
TASKS.add(
    "digits-clustering",
    Task(
        "handwritten digits, clustered without labels",
        make_digits,
        {**DEFAULTS, "rounds": 60, "targets": (60, 70)},
        SETTINGS,
    ),
)
