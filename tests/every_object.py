"""Every public object, as a function that makes it and one that makes another: see ``test_objects.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.engines.experiment import Experiment
from fedvra.policies import POLICIES, Pace, Stepwise, auto, inverse_p, over_rounds
from fedvra.theory import Theorem1, Theorem2
from quadratics import quadratic

N = 6
TABLE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5]


# -- what the objects are made of; at the top level, where pickle finds them ---------------------------------------------


def halving(round: int) -> float:
    return 0.5**round


def growing(round: int) -> float:
    return 1.0 + round


def nothing(options: Any) -> Any:
    return None, None


def own_setting(cohort: fv.Cohort) -> Any:
    return 1.0 + cohort.clients


def odd_and_even(round: int, clients: Any) -> Any:
    return clients % 2 == round % 2


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def fixed_net() -> nn.Module:
    torch.manual_seed(0)
    return small_net()


class Smoothed:
    """A loss that is neither a function nor a module."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=self.by)


class OwnStatistics(nn.Module):
    """Keeps a statistic that no kind of layer tells of: it is found by looking."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
        return self.linear(x - self.centre)


class Shared(fv.TwoBlock):
    """A user's problem: no dataclass, its attributes are all there is."""

    lr_y = 0.3

    def __init__(self, target: Tensor) -> None:
        self._target = target

    @property
    def clients(self) -> int:
        return len(self._target)

    def x_start(self) -> Tensor:
        return torch.zeros(self._target.shape[1])

    def y_start(self, client: int) -> Tensor:
        return torch.zeros(self._target.shape[1])

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        return float((x + y - self._target[client]).square().sum() / 2 + y.square().sum() / 2)

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return x + y - self._target[client]

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return x + 2 * y - self._target[client]

    def project_x(self, x: Tensor) -> Tensor:
        return x

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return fv.Ball(1.0)(y)


@dataclass(frozen=True)
class TheirSampler(fv.Uniform):
    """As somebody else would write one: a dataclass like any other, with a table in it."""

    table: Any = None


class Items(torch.utils.data.Dataset[Any]):
    """A Dataset that can be pickled."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), 0


def own_client(client: int) -> Any:
    return np.full((2, 4), float(client), np.float32), np.zeros(2, dtype=int)


def data(seed: int = 0) -> fv.FederatedData:
    rng = np.random.default_rng(seed)
    inputs, labels = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    return fv.split((inputs, labels), fv.IID(), clients=N, seed=seed, test=(inputs[:9], labels[:9]))


def costs(seed: int = 0) -> fv.Quadratic:
    return fv.Quadratic(*quadratic(N, 4, seed=seed))


# -- the table: each kind as a function that makes it anew, and one that makes another --------------------------------------

Maker = Callable[[], Any]

MORE_ALGORITHMS: dict[str, tuple[Maker, Maker]] = {
    "fedvra, numbers": (lambda: fv.FedVRA(gamma=0.1, a=5), lambda: fv.FedVRA(gamma=0.1, a=6)),
    "fedvra, tables": (lambda: fv.FedVRA(gamma=0.5, a=TABLE, d=np.ones(N)), lambda: fv.FedVRA(gamma=0.5, a=TABLE)),
    "fedvra, a table of rounds": (
        lambda: fv.FedVRA(gamma=0.5, a=np.ones((4, N))),
        lambda: fv.FedVRA(gamma=0.5, a=np.full((4, N), 2.0)),
    ),
    "fedvra, policies": (
        lambda: fv.FedVRA(gamma=0.5, a=POLICIES["remark1"], d=inverse_p),
        lambda: fv.FedVRA(gamma=0.5, a=auto, d=inverse_p),
    ),
    "fedvra, schedules": (
        lambda: fv.FedVRA(gamma=over_rounds(growing), a=Stepwise.parse("3:2@2")),
        lambda: fv.FedVRA(gamma=over_rounds(halving), a=Stepwise.parse("3:2@2")),
    ),
    "fedvra, a function": (lambda: fv.FedVRA(gamma=0.5, a=own_setting), lambda: fv.FedVRA(gamma=0.5, a=inverse_p)),
}
ALGORITHMS = {name: (kind, None) for name, kind in REGISTRY.items()} | MORE_ALGORITHMS

MADE_SAMPLERS: dict[str, tuple[Maker, Maker | None]] = {
    "full": (fv.Full, None),
    "uniform": (lambda: fv.Uniform(3), lambda: fv.Uniform(2)),
    "bernoulli": (lambda: fv.Bernoulli(0.5), lambda: fv.Bernoulli(0.4)),
    "weighted": (lambda: fv.Weighted(TABLE), lambda: fv.Weighted(TABLE[::-1])),
    "power-of-choice": (lambda: fv.PowerOfChoice(2, 4), lambda: fv.PowerOfChoice(2, 5)),
    "cyclic": (lambda: fv.Cyclic(groups=[[0, 1, 2], [3, 4, 5]]), lambda: fv.Cyclic(m=3)),
    "availability": (
        lambda: fv.Availability(fv.Uniform(3), period=3, duty=0.5),
        lambda: fv.Availability(fv.Uniform(2), period=3, duty=0.5),
    ),
    "replay": (lambda: fv.Replay([[2, 0], [1], [4, 5]]), lambda: fv.Replay([[2, 0], [1], [5, 4]])),
    "bernoulli, a table": (lambda: fv.Bernoulli(TABLE), lambda: fv.Bernoulli(TABLE[::-1])),
    "availability, a table": (
        lambda: fv.Availability(fv.Full(), table=np.eye(N, dtype=bool)),
        lambda: fv.Availability(fv.Full(), table=~np.eye(N, dtype=bool)),
    ),
    "availability, a function": (
        lambda: fv.Availability(fv.Full(), function=odd_and_even),
        lambda: fv.Availability(fv.Full(), function=partial(odd_and_even, 1)),
    ),
    "replay, probabilities": (
        lambda: fv.Replay([[2, 0], [1], [4]], [[0.5, 0.4], [0.3], [0.5]]),
        lambda: fv.Replay([[2, 0], [1], [4]], [[0.5, 0.4], [0.3], [0.6]]),
    ),
    "somebody else's": (lambda: TheirSampler(3, table=np.ones(N)), lambda: TheirSampler(3, table=np.zeros(N))),
}

WORK: dict[str, tuple[Maker, Maker | None]] = {
    "steps": (lambda: fv.Steps(3), lambda: fv.Steps(2)),
    "steps, a table": (lambda: fv.Steps([[1, 2, 3, 4, 5, 6]] * 3), lambda: fv.Steps([1, 2, 3, 4, 5, 6])),
    "epochs": (lambda: fv.Epochs(2), lambda: fv.Epochs(3)),
    "random epochs": (lambda: fv.RandomEpochs(1, 3), lambda: fv.RandomEpochs(1, 2)),
    "speeds": (lambda: fv.Speeds(TABLE, fv.Steps(9)), lambda: fv.Speeds(TABLE, fv.Steps(8))),
}

MADE_PARTITIONS: dict[str, tuple[Maker, Maker | None]] = {
    "iid": (fv.IID, None),
    "dirichlet": (lambda: fv.Dirichlet(0.5), lambda: fv.Dirichlet(0.4)),
    "dirichlet-by-class": (lambda: fv.DirichletByClass(0.5), lambda: fv.DirichletByClass(0.4)),
    "shards": (lambda: fv.Shards(2), lambda: fv.Shards(3)),
    "quantity": (lambda: fv.QuantitySkew(2.0), lambda: fv.QuantitySkew(1.0)),
    "by column": (lambda: fv.ByColumn(list("abc") * 20), lambda: fv.ByColumn(list("bac") * 20)),
}

PROBLEMS: dict[str, tuple[Maker, Maker | None]] = {
    "quadratic": (costs, lambda: costs(1)),
    "two blocks": (lambda: Shared(torch.ones(N, 3)), lambda: Shared(torch.zeros(N, 3))),
    "supervised": (lambda: fv.Supervised(fixed_net()), lambda: fv.Supervised(fixed_net(), weight_decay=0.1)),
    "supervised, a function": (
        lambda: fv.Supervised(small_net, loss=Smoothed(0.1)),
        lambda: fv.Supervised(small_net, loss=Smoothed(0.2)),
    ),
    "supervised, a loss with a setting": (
        lambda: fv.Supervised(small_net, loss=partial(nn.functional.cross_entropy, label_smoothing=0.1)),
        lambda: fv.Supervised(small_net, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    ),
    "semi-supervised": (lambda: fv.SemiSupervised(fixed_net(), hidden=0.5), lambda: fv.SemiSupervised(fixed_net())),
    "clustering": (lambda: fv.Clustering(data(), 3), lambda: fv.Clustering(data(1), 3)),
}

OTHERS: dict[str, tuple[Maker, Maker | None]] = {
    **{f"policy {name}": (type(policy), None) for name, policy in POLICIES.items()},
    "constants of auto": (lambda: fv.Auto(strongest=1.5), lambda: fv.Auto(strongest=1.25)),
    "over rounds": (lambda: over_rounds(halving), lambda: over_rounds(growing)),
    "over rounds, with a setting": (
        lambda: over_rounds(partial(pow, 0.5)),
        lambda: over_rounds(partial(pow, 0.25)),
    ),
    "a schedule": (lambda: Stepwise.parse("10:5@100"), lambda: Stepwise.parse("10:4@100")),
    "a stepsize over rounds": (
        lambda: fv.Schedule(TABLE, decay=0.9, warmup=2, cosine=9),
        lambda: fv.Schedule(TABLE, decay=0.9, warmup=2, cosine=8),
    ),
    "pace": (lambda: Pace.first(auto, 0.1), lambda: Pace.first(auto, 0.01)),
    "data": (data, lambda: data(1)),
    "data, a function per client": (lambda: fv.per_client(own_client, [2, 2]), lambda: fv.per_client(own_client, [2])),
    "data, a Dataset": (lambda: fv.split(Items(5), fv.IID(), 2, lazy=True), lambda: fv.split(Items(5), fv.IID(), 2)),
    "a data set": (lambda: data().dataset, lambda: data(1).dataset),
    "a transform": (lambda: fv.Transform((0.1,), (0.2,)), lambda: fv.Transform()),
    "experiment": (
        lambda: Experiment(fv.FedVRA(), costs(), fv.Bernoulli(TABLE), fv.Steps(3), weights=np.arange(N)),
        lambda: Experiment(fv.FedVRA(), costs(), fv.Bernoulli(TABLE), fv.Steps(3), weights=np.ones(N)),
    ),
    "experiment with data": (
        lambda: Experiment(
            fv.FedVRA(), fv.Supervised(small_net), fv.Full(), fv.Epochs(1), data(), x_init=torch.ones(3)
        ),
        lambda: Experiment(
            fv.FedVRA(), fv.Supervised(small_net), fv.Full(), fv.Epochs(1), data(), x_init=torch.zeros(3)
        ),
    ),
    "engine": (lambda: fv.Ray("auto", 4, runtime_env={"pip": ["x"]}), lambda: fv.Ray("auto", 4)),
    "cohort": (
        lambda: fv.Cohort(0, N, *(np.arange(3) for _ in range(6))),
        lambda: fv.Cohort(0, N, *(np.arange(2) for _ in range(6))),
    ),
    "coefficients": (
        lambda: fv.Coefficients(np.ones(3), np.zeros(3), np.ones(3)),
        lambda: fv.Coefficients(np.ones(3), np.zeros(3), np.zeros(3)),
    ),
    "task": (lambda: fv.Task("a task", nothing), lambda: fv.Task("a task", nothing, {"rounds": 3})),
    "solver": (fv.SolverSettings, lambda: fv.SolverSettings(path="eager")),
    "sgd": (lambda: fv.SGD(momentum=0.9), lambda: fv.SGD(momentum=0.9, clip=10)),
    "adam": (fv.Adam, lambda: fv.Adam(beta1=0.8)),
    "adamw": (fv.AdamW, lambda: fv.AdamW(weight_decay=0)),
    "torch": (lambda: fv.Torch(torch.optim.RMSprop), lambda: fv.Torch(torch.optim.Adagrad)),
    "system": (lambda: fv.System(step=TABLE, deadline=3), lambda: fv.System(step="uniform:1,2", deadline=3)),
    "windows": (lambda: fv.Windows(10, spans=[[(0, 2)]]), lambda: fv.Windows(10, duty=0.2)),
    "loop": (lambda: fv.Loop(small_net), fv.Loop),
    "median norm": (lambda: fv.MedianNorm(2), lambda: fv.MedianNorm(3)),
    "quantize": (lambda: fv.Quantize(4), lambda: fv.Quantize(2)),
    "top k": (lambda: fv.TopK(0.1), lambda: fv.TopK(0.2)),
    "bfloat16": (fv.BFloat16, None),
    "chain": (lambda: fv.Chain(fv.TopK(0.1), fv.Quantize(4)), lambda: fv.Chain(fv.TopK(0.1), fv.Quantize(2))),
    "record dp": (lambda: fv.RecordDP(noise=2), lambda: fv.RecordDP(noise=2, max_epsilon=8)),
    "multi-krum": (lambda: fv.MultiKrum(1), lambda: fv.MultiKrum(2)),
    "until": (lambda: fv.Until(97), lambda: fv.Until("f1=0.8")),
    "client results": (lambda: fv.ClientResults(3), lambda: fv.ClientResults(3, tune=2)),
    "train losses": (fv.TrainLosses, fv.StationarityGap),
    "rmse": (fv.RMSE, fv.Perplexity),
    "perplexity": (fv.Perplexity, lambda: fv.Perplexity(0)),
    "patience": (lambda: fv.Patience(3), lambda: fv.Patience(4)),
    "gap": (lambda: fv.StationarityGap(2), fv.StationarityGap),
    "diagnostics": (lambda: fv.Diagnostics(2), fv.Diagnostics),
    "theorem 1": (lambda: theorem(Theorem1), lambda: theorem(Theorem1, a=3)),
    "theorem 2": (lambda: theorem(Theorem2), lambda: theorem(Theorem2, a=3)),
    "coverage": (
        lambda: fv.check(
            fv.FedVRA(gamma=9, a=2), problem=costs(), sampler=fv.Uniform(3), work=fv.Steps(3), lr=0.01, rounds=9
        ),
        lambda: fv.check(
            fv.FedVRA(gamma=9, a=3), problem=costs(), sampler=fv.Uniform(3), work=fv.Steps(3), lr=0.01, rounds=9
        ),
    ),
    "whole space": (fv.WholeSpace, None),
    "non-negative": (fv.NonNegative, None),
    "box": (lambda: fv.Box(torch.zeros(3), 1), lambda: fv.Box(torch.ones(3), 1)),
    "ball": (lambda: fv.Ball(1, torch.ones(3)), lambda: fv.Ball(1)),
    "simplex": (fv.Simplex, lambda: fv.Simplex(2)),
    "affine": (lambda: fv.Affine(torch.eye(2), torch.ones(2)), lambda: fv.Affine(torch.eye(2), torch.zeros(2))),
    "product": (
        lambda: fv.Product.of_parameters(fixed_net(), {"0.weight": fv.Box(torch.zeros(5, 4), 1)}),
        lambda: fv.Product.of_parameters(fixed_net(), {"0.bias": fv.NonNegative()}),
    ),
    "own projection": (lambda: fv.Own(torch.relu), lambda: fv.Own(torch.abs)),
}


def theorem(kind: Any, a: float = 2) -> Any:
    return kind.feasible(L=[1.0, 2.0], p=0.5, steps=5, a=a, d=2)


EVERYTHING = {
    f"{kind}: {name}": makers
    for kind, table in {
        "algorithm": ALGORITHMS,
        "sampler": MADE_SAMPLERS,
        "work": WORK,
        "partition": MADE_PARTITIONS,
        "problem": PROBLEMS,
        "other": OTHERS,
    }.items()
    for name, makers in table.items()
}
