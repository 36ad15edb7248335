"""Federated clustering: a matrix factorisation whose first block are the centroids, whose second says who belongs to which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.threads import one_thread
from fedvra.core.validation import check_whole
from fedvra.data.dataset import FederatedData
from fedvra.problems.projections import Box, Simplex
from fedvra.problems.two_block import Rng, TwoBlock


@dataclass(frozen=True)
class Clustering(TwoBlock):
    r"""Centroids W [K, D] in a box, common to all, and for each client indicators H_i [n_i, K] with rows on the simplex.

    .. math::

        f_i(W, H_i) = \frac{1}{2 n_i}\|X_i - H_i W\|^2 + \frac{\nu}{2 n_i}\sum_{j}\big(1 - \|h_j\|^2\big)

    The first term alone (:math:`\nu = 0`) makes every sample a mixture of centroids, which then move out to the corners of the
    data. The second, zero at the corners of the simplex only, asks each sample to belong to one cluster (the penalty of
    non-convex orthogonal factorisation). Both are smooth:

    .. math:: \nabla_W f_i = \tfrac{1}{n_i} H_i^T(H_i W - X_i), \qquad
        \nabla_{H_i} f_i = \tfrac{1}{n_i}\big((H_i W - X_i) W^T - \nu H_i\big)

    At :math:`h_j = e_k` a sample stays in cluster k as long as
    :math:`\langle w_k - w_l, w_k - x_j\rangle \le \nu` for every l; it is nearest to :math:`w_k` when the same is at most
    :math:`\|w_k - w_l\|^2/2`. So with :math:`\nu` half the smallest squared distance of two centroids a sample well inside
    another cluster moves there, and one near a border may be shared; far above it nobody moves. The default takes the means
    of the samples nearest to each seed for that distance.

    The start is k-means++ done by the federation: see :func:`seed_centroids`. Labels, where the data has any, are looked at by
    the report alone: ``clustering_accuracy`` (under the best matching of clusters to classes), ``nmi`` and ``objective``.
    ``test_accuracy`` is the clustering accuracy too, so that targets and curves work as with other tasks.

    Args:
        data: who holds which samples; they are taken as the data set's transform gives them, flattened.
        clusters: K.
        penalty: nu; None as above.
        box: bounds of the centroids (low, high); None takes the range of the data.
        seed: of the seeding.
        restarts: seedings to choose from.

    >>> import numpy as np, fedvra as fv
    >>> points = np.repeat([[0.0, 0.0], [9.0, 9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 2))
    >>> data = fv.split((points.astype(np.float32), np.repeat([0, 1], 20)), fv.IID(), clients=4)
    >>> given = {"problem": fv.Clustering(data, clusters=2), "sampler": fv.Full(), "work": fv.Steps(5), "lr": 0.1}
    >>> fv.simulate(fv.FedVRAU(), **given, rounds=5).metrics[-1]["test_accuracy"]
    1.0
    """

    data: FederatedData
    clusters: int
    penalty: float | None = None
    box: tuple[float, float] | None = None
    steps_y: int = 10
    seed: int = 0
    restarts: int = 5
    parts: list[Tensor] = field(init=False, repr=False, compare=False)
    """X_i, [n_i, D] each."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.data, FederatedData),
            f"Clustering needs fv.split(dataset, partition, clients=...), got {type(self.data).__name__}.",
        )
        check_whole("clusters", self.clusters, least=2)
        check_whole("restarts", self.restarts)
        require(self.penalty is None or self.penalty >= 0, f"penalty must be >= 0 or None, got {self.penalty}.")
        dataset = self.data.dataset
        dataset.require_single("Clustering")
        every = dataset.transform(dataset.inputs, None, torch.float32).flatten(1)
        parts = [every[torch.from_numpy(self.data.part(client))] for client in range(self.data.clients)]
        object.__setattr__(self, "parts", parts)
        n = int(self.data.sizes.sum())
        require(self.clusters <= n, f"{self.clusters} clusters of {n} samples: ask for fewer.")

    @cached_property
    def start(self) -> Tensor:
        """The centroids at the start."""
        with one_thread():
            seeds = [seed_centroids(self.parts, self.clusters, self.seed, attempt) for attempt in range(self.restarts)]
        return min(seeds, key=lambda found: found[1])[0]

    @cached_property
    def nu(self) -> float:
        if self.penalty is not None:
            return self.penalty
        with one_thread():
            members = [self.y_start(client) for client in range(self.clients)]
            sums = torch.stack([H.T @ X for H, X in zip(members, self.parts, strict=True)]).sum(0)
            counts = torch.stack([H.sum(0) for H in members]).sum(0)
        return float(torch.pdist(sums / counts[:, None]).square().min()) / 2

    @cached_property
    def bounds(self) -> Box:
        if self.box is not None:
            return Box(*self.box)
        return Box(min(float(part.min()) for part in self.parts), max(float(part.max()) for part in self.parts))

    # -- the problem ---------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return len(self.parts)

    def samples(self, data: None) -> Ints:
        return self.data.sizes

    def x_start(self) -> Tensor:
        return self.bounds(self.start)

    def y_start(self, client: int) -> Tensor:
        """Each sample belongs to its nearest seed."""
        nearest = torch.cdist(self.parts[client], self.start).argmin(1)
        return torch.nn.functional.one_hot(nearest, self.clusters).to(self.start.dtype)

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        error = (y @ x - self.parts[client]).square().sum()
        return float(error + self.nu * (len(y) - y.square().sum())) / (2 * len(y))

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Rng) -> Tensor:
        return y.T @ (y @ x - self.parts[client]) / len(y)

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Rng) -> Tensor:
        return ((y @ x - self.parts[client]) @ x.T - self.nu * y) / len(y)

    def project_x(self, x: Tensor) -> Tensor:
        return self.bounds(x)

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return Simplex()(y)

    def stepsize_y(self, client: int, x: Tensor) -> float:
        """1/L_y. Centred: rows of H sum to 1, so a vector added to every centroid and sample changes nothing."""
        curvature = float(torch.linalg.matrix_norm(x - x.mean(0), 2)) ** 2 + self.nu
        return len(self.parts[client]) / max(curvature, 1e-12)

    # -- how good it is ------------------------------------------------------------------------------------------------

    def assign(self, x: Tensor, y: Callable[[int], Tensor]) -> list[Ints]:
        """The cluster of each sample of each client, once the client has looked at x."""
        return [
            np.asarray(self.best_response(client, x, y(client)).argmax(1).numpy()) for client in range(self.clients)
        ]

    def report(self, x: Tensor, y: Callable[[int], Tensor]) -> dict[str, float]:
        weights = self.data.sizes / self.data.sizes.sum()
        costs = [self.cost(client, x, y(client)) for client in range(self.clients)]
        found = {"objective": float(weights @ np.array(costs))}
        labels = self.data.dataset.labels
        if labels is not None and labels[self.data.trained].max() >= 0:
            truth, clusters = labels[self.data.trained], np.concatenate(self.assign(x, y))
            truth, clusters = truth[truth >= 0], clusters[truth >= 0]
            accuracy = clustering_accuracy(truth, clusters)
            found |= {
                "test_accuracy": accuracy,
                "clustering_accuracy": accuracy,
                "nmi": mutual_information(truth, clusters),
            }
        return found


def seed_centroids(parts: Sequence[Tensor], clusters: int, seed: int, attempt: int = 0) -> tuple[Tensor, float]:
    """Greedy k-means++ over all clients' samples, without pooling them: the centroids [K, D] and what they leave.

    A client knows the squared distance of each of its samples to the nearest seed so far and tells their sum. The server
    draws a client by these sums, which draws one of its samples by these distances: the same law as k-means++ on the pooled
    samples. Of 2 + log K such candidates the one that leaves the smallest total becomes the next seed. Only sums and the
    candidates themselves are sent; whoever cannot send a sample should give ``x_init`` instead.
    """
    server = stream(seed, Purpose.SEEDING, attempt)
    far = [torch.ones(len(part), dtype=torch.float64) for part in parts]
    chosen: list[Tensor] = []
    for k in range(clusters):
        sums = np.array([float(distances.sum()) for distances in far])
        best: tuple[float, Tensor, list[Tensor]] | None = None
        for _ in range(1 if k == 0 else 2 + int(np.log(clusters))):
            client = int(_drawn(server, sums))
            candidate = parts[client][int(_drawn(server, far[client].numpy()))]
            nearer = [(part - candidate).double().square().sum(1) for part in parts]
            left = nearer if k == 0 else [torch.minimum(old, new) for old, new in zip(far, nearer, strict=True)]
            total = float(sum(float(distances.sum()) for distances in left))
            if best is None or total < best[0]:
                best = total, candidate, left
        assert best is not None
        _, candidate, far = best
        chosen.append(candidate)
    return torch.stack(chosen), float(sum(float(distances.sum()) for distances in far))


def _drawn(rng: np.random.Generator, weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    """A position with probability in proportion to its weight; any, where all weights are zero."""
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total if total > 0 else None))


def clustering_accuracy(truth: Ints, clusters: Ints) -> float:
    """The share of samples whose cluster matches their class, under the matching that is best for that share.

    >>> clustering_accuracy(np.array([0, 0, 1, 1]), np.array([5, 5, 2, 5]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    table = np.zeros((int(truth.max()) + 1, int(clusters.max()) + 1), dtype=np.int64)
    np.add.at(table, (truth, clusters), 1)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(truth))


def mutual_information(truth: Ints, clusters: Ints) -> float:
    """Normalised mutual information: 1 where each determines the other, 0 where neither says anything of the other."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(truth, clusters))
