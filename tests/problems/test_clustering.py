"""Federated clustering: gradients, seeding, recovery of clouds however they are dealt, and how it compares with k-means."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

import fedvra as fv
from fedvra.data.partitions.base import Partition
from fedvra.problems.clustering import clustering_accuracy, seed_centroids
from fedvra.runs.config import build, configure
from fedvra.tasks.clustering import blobs

torch.set_num_threads(1)  # a few hundred numbers at a time: more threads only wait for each other

SETTINGS: dict[str, Any] = {
    "sampler": fv.Uniform(5), "work": fv.Steps(5), "lr": 0.5, "weights": "samples", "seed": 0, "workers": 1,
}  # fmt: skip


def clouds(partition: Partition, clients: int = 20, seed: int = 0) -> fv.FederatedData:
    return fv.split(blobs(seed), partition, clients=clients, seed=seed)


def points(problem: fv.Clustering) -> Tensor:
    return torch.cat(problem.parts)


# --- The problem -------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_cost() -> None:
    problem = fv.Clustering(clouds(fv.IID()), 8, penalty=3.0)
    rng = np.random.default_rng(0)
    W = torch.tensor(rng.normal(size=(8, 5)), dtype=torch.float64, requires_grad=True)
    X = problem.parts[2].double()
    H = torch.tensor(rng.dirichlet(np.ones(8), len(X)), requires_grad=True)
    cost = ((X - H @ W).square().sum() + 3.0 * (1 - H.square().sum(1)).sum()) / (2 * len(X))
    expected = torch.autograd.grad(cost, (W, H))
    w, h = W.detach().float(), H.detach().float()
    assert problem.cost(2, w, h) == pytest.approx(cost.item(), rel=1e-5)
    assert torch.allclose(problem.gradient_x(2, w, h, None), expected[0].float(), atol=1e-5)
    assert torch.allclose(problem.gradient_y(2, w, h, None), expected[1].float(), atol=1e-5)


def test_a_step_on_y_never_raises_the_cost() -> None:
    problem = fv.Clustering(clouds(fv.Dirichlet(0.3)), 8)
    x = problem.x_start() + torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    for client in range(3):
        y = Tensor(np.random.default_rng(client).dirichlet(np.ones(8), len(problem.parts[client])))
        costs = [problem.cost(client, x, y)]
        for _ in range(10):
            slope = problem.gradient_y(client, x, y, None)
            y = problem.project_y(client, y - problem.stepsize_y(client, x) * slope)
            costs.append(problem.cost(client, x, y))
        assert np.diff(costs).max() <= 1e-4 * costs[0]
        assert costs[-1] < 0.8 * costs[0]


def test_the_default_penalty_lets_samples_of_other_clusters_go() -> None:
    """At half the smallest squared distance a misplaced sample moves; far above it, it stays where it is."""
    data = clouds(fv.IID(), clients=4)
    moved = {}
    for penalty in (None, 1e4):
        problem = fv.Clustering(data, 8, penalty=penalty)
        x, right = problem.x_start(), problem.y_start(0)
        wrong = right.roll(1, dims=1)
        found = problem.best_response(0, x, wrong)
        for _ in range(10):
            found = problem.best_response(0, x, found)
        moved[penalty] = float((found.argmax(1) == right.argmax(1)).double().mean())
    assert moved[None] > 0.95
    assert moved[1e4] == 0


# --- Seeding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [fv.IID(), fv.Dirichlet(0.05), fv.Shards(1)], ids=str)
def test_every_cloud_gets_a_seed(partition: Partition) -> None:
    for seed in range(3):
        data = clouds(partition, seed=seed)
        problem = fv.Clustering(data, 8, seed=seed)
        labels = data.dataset.targets[data.indices]
        nearest = torch.cdist(problem.start, points(problem)).argmin(1)
        assert sorted(labels[nearest].tolist()) == list(range(8))


def test_seeds_are_samples_drawn_by_squared_distance() -> None:
    """Two clients, three places: from the first seed the second is drawn as from the pooled samples."""
    parts = [torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [3.0]])]
    second = []
    for seed in range(600):
        found, left = seed_centroids([parts[0], parts[1]], 2, seed)
        assert left >= 0
        first, other = found.flatten().tolist()
        if first == 0.0:
            second.append(other)
    # Candidates: 2 draws with probabilities 1/19 (at 1) and 18/19 (at 3), of which 3 leaves less and wins.
    assert len(second) > 100
    assert np.mean(np.array(second) == 1.0) == pytest.approx((1 / 19) ** 2, abs=0.02)


def test_seeding_repeats_itself_and_restarts_help() -> None:
    parts = fv.Clustering(clouds(fv.IID()), 8).parts
    assert torch.equal(seed_centroids(parts, 8, 3)[0], seed_centroids(parts, 8, 3)[0])
    assert not torch.equal(seed_centroids(parts, 8, 3)[0], seed_centroids(parts, 8, 4)[0])
    best = min(seed_centroids(parts, 8, 0, attempt)[1] for attempt in range(4))
    problem = fv.Clustering(clouds(fv.IID()), 8, restarts=4)
    assert float(torch.cdist(points(problem), problem.start).min(1).values.square().sum()) == pytest.approx(
        best, rel=1e-4
    )


def test_samples_that_are_all_the_same_can_be_seeded() -> None:
    found, left = seed_centroids([torch.ones(3, 2), torch.ones(4, 2)], 2, 0)
    assert torch.equal(found, torch.ones(2, 2))
    assert left == 0


# --- How good it is ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_accuracy_is_that_of_the_best_matching(pairs: list[tuple[int, int]]) -> None:
    truth, clusters = (np.array(column) for column in zip(*pairs, strict=True))
    every = (np.mean(np.array(order)[clusters] == truth) for order in itertools.permutations(range(4)))
    assert clustering_accuracy(truth, clusters) == pytest.approx(max(every))


@pytest.mark.parametrize("partition", [fv.IID(), fv.Dirichlet(0.1), fv.Shards(1)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clouds_are_recovered_however_they_are_dealt(partition: Partition, seed: int) -> None:
    data = clouds(partition, seed=seed)
    problem = fv.Clustering(data, 8, seed=seed)
    settings = {**SETTINGS, "seed": seed, "eval_every": 25}
    history = fv.simulate(fv.FedVRAU(gamma=0.1, a=2), problem=problem, rounds=25, **settings)
    record = history.metrics[-1]
    assert record["clustering_accuracy"] == record["test_accuracy"] >= 0.99
    assert record["nmi"] >= 0.98
    pooled = KMeans(8, n_init=3, random_state=0).fit(points(problem).numpy())
    assert record["objective"] <= 1.05 * pooled.inertia_ / 2 / len(data.indices)
    off = torch.cdist(history.x0.view(8, 5), torch.tensor(pooled.cluster_centers_)).min(1).values
    seeds = torch.cdist(problem.start, torch.tensor(pooled.cluster_centers_)).min(1).values
    assert float(off.mean()) < float(seeds.mean()) / 2, "centroids are no nearer to the means of the pooled data"


def test_without_the_penalty_centroids_leave_for_the_corners() -> None:
    data = clouds(fv.IID())
    objective, spread = {}, {}
    for penalty in (0.0, None):
        history = fv.simulate(
            fv.FedVRAU(gamma=0.1, a=2), problem=fv.Clustering(data, 8, penalty=penalty), rounds=25,
            **{**SETTINGS, "eval_every": 25},
        )  # fmt: skip
        W = history.x0.view(8, 5)
        objective[penalty] = history.metrics[-1]["objective"]
        spread[penalty] = float((W - W.mean(0)).norm())
    assert objective[0.0] < 0.9 * objective[None]
    assert spread[0.0] > spread[None]


def test_digits_are_clustered_about_as_well_as_by_k_means_from_the_same_seeds() -> None:
    data = fv.split(fv.load("digits"), fv.Dirichlet(0.2), clients=20, seed=0)
    problem = fv.Clustering(data, 10)
    history = fv.simulate(
        fv.FedVRAU(gamma=0.1, a=2), problem=problem, rounds=40, **{**SETTINGS, "eval_every": 40}
    )  # fmt: skip
    record = history.metrics[-1]
    truth = data.dataset.targets.numpy()[data.indices]
    pooled = KMeans(10, init=problem.start.numpy(), n_init=1).fit(points(problem).numpy())
    assert record["clustering_accuracy"] > clustering_accuracy(truth, pooled.labels_) - 0.05
    assert record["objective"] < 1.05 * pooled.inertia_ / 2 / len(truth)


def test_labels_are_looked_at_by_the_report_alone() -> None:
    data = clouds(fv.Dirichlet(0.3))
    shuffled = data.dataset.targets[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    lies = fv.FederatedData(replace(data.dataset, targets=shuffled), data.offsets, data.indices)
    runs = [fv.simulate(fv.FedVRAU(gamma=0.1), problem=fv.Clustering(d, 8), rounds=3, **SETTINGS) for d in (data, lies)]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert runs[0].metrics[-1]["clustering_accuracy"] > 0.9
    assert runs[1].metrics[-1]["clustering_accuracy"] < 0.3


def test_data_without_labels_are_clustered_too() -> None:
    data = fv.split((blobs(0).inputs, blobs(0).inputs[:, 0]), fv.IID(), clients=5)
    record = fv.simulate(fv.FedVRAU(), problem=fv.Clustering(data, 8), rounds=1, **SETTINGS).metrics[0]
    assert record["objective"] > 0
    assert record["test_accuracy"] is None
    assert "nmi" not in record


# --- The engine and the tasks ------------------------------------------------------------------------------------------


def test_workers_do_not_change_a_bit() -> None:
    problem = fv.Clustering(clouds(fv.Dirichlet(0.3)), 8)
    runs = [
        fv.simulate(fv.Scaffold(), problem=problem, rounds=3, drop=0.2, **{**SETTINGS, "workers": w}) for w in (1, 2)
    ]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert all(torch.equal(row, runs[1].y[i]) for i, row in runs[0].y.items())
    assert [m["objective"] for m in runs[0].metrics] == [m["objective"] for m in runs[1].metrics]


def test_centroids_stay_in_their_box() -> None:
    problem = fv.Clustering(clouds(fv.IID()), 8, box=(-1.0, 2.0))
    history = fv.simulate(fv.FedVRAU(gamma=0.1, a=2), problem=problem, rounds=5, **SETTINGS)
    assert float(history.x0.min()) >= -1
    assert float(history.x0.max()) <= 2
    inside = fv.Clustering(clouds(fv.IID()), 8)
    assert inside.bounds.contains(points(inside))


def test_the_tasks() -> None:
    for name, clusters in (("blobs-clustering", 8), ("digits-clustering", 10)):
        config = configure({"task": name})
        assert (config.algorithm, config.batch_size, config.weights) == ("fedvra-u", None, "samples")
        problem = build(config).problem
        assert isinstance(problem, fv.Clustering)
        assert problem.clusters == clusters
    assert float(torch.pdist(torch.stack([blobs(3).inputs[blobs(3).targets == c].mean(0) for c in range(8)])).min()) > 7


# --- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 1}, "clusters must be at least 2"),
        ({"clusters": 5000}, "ask for fewer"),
        ({"penalty": -1.0}, "penalty must be >= 0"),
        ({"box": (1.0, 0.0)}, "low <= high"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"steps_y": 0}, "steps_y must be at least 1"),
        ({"data": torch.zeros(3, 2)}, "fv.split"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    def attempt() -> None:
        problem = fv.Clustering(**{"data": clouds(fv.IID()), "clusters": 8, **options})
        fv.simulate(fv.FedVRAU(), problem=problem, rounds=1, **SETTINGS)

    with pytest.raises(fv.UsageError, match=message):
        attempt()
