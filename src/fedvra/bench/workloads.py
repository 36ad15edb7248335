"""The workloads that are timed, on made-up data of the right shapes: speed does not depend on what the pixels show."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedvra
from fedvra.algorithms.base import Algorithm
from fedvra.data.dataset import Dataset, FederatedData, Transform, split
from fedvra.data.partitions import IID
from fedvra.errors import FedvraError
from fedvra.models import MODELS
from fedvra.planning import Experiment
from fedvra.problems.base import SolverSettings
from fedvra.problems.supervised import Supervised
from fedvra.samplers import Uniform
from fedvra.work import Epochs


@dataclass(frozen=True)
class Workload:
    """FedAvg-style rounds over N clients of equal size, m of which take part."""

    title: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    """Samples per client."""
    cohort: int
    epochs: int
    batch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def client_steps(self) -> int:
        return self.cohort * self.epochs * -(-self.samples // self.batch_size)

    def make_model(self) -> nn.Module:
        return MODELS.get(self.model)(self.shape, 10)

    def raw(self) -> tuple[Tensor, Tensor]:
        """Images as they are stored (uint8) and labels."""
        generator = torch.Generator().manual_seed(0)
        count = self.clients * self.samples
        images = torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=generator)
        return images, torch.randint(0, 10, (count,), generator=generator)

    @property
    def transform(self) -> Transform:
        return Transform(self.mean, self.std)

    def data(self) -> FederatedData:
        images, labels = self.raw()
        dataset = Dataset("bench", images, labels, transform=self.transform, classes=10)
        return split(dataset, IID(), clients=self.clients, seed=0)

    def experiment(self, algorithm: Algorithm, data: FederatedData, solver: SolverSettings | None = None) -> Experiment:
        return Experiment(
            algorithm=algorithm,
            problem=Supervised(self.make_model, weight_decay=1e-3),
            data=data,
            sampler=Uniform(self.cohort),
            work=Epochs(self.epochs),
            lr=0.01,
            batch_size=self.batch_size,
            eval_every=0,
            solver=solver or SolverSettings(),
        )


_W1 = Workload(
    title="MNIST MLP, N=100, m=10, 2 epochs of batch 50",
    model="mlp",
    shape=(1, 28, 28),
    clients=100,
    samples=600,
    cohort=10,
    epochs=2,
    batch_size=50,
    mean=(0.1307,),
    std=(0.3081,),
)

WORKLOADS: dict[str, Workload] = {
    "w1": _W1,
    "w2": Workload(
        title="CIFAR-10 CNN (64, 64, 384, 192), N=100, m=10, 2 epochs of batch 50",
        model="cnn-feddyn",
        shape=(3, 32, 32),
        clients=100,
        samples=500,
        cohort=10,
        epochs=2,
        batch_size=50,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "w3": replace(
        _W1,
        title="MNIST MLP, N=10,000 of 6 samples, m=100, one step",
        clients=10_000,
        samples=6,
        cohort=100,
        epochs=1,
        batch_size=6,
    ),
}


def bare_of(workload: Workload) -> Any:
    """The bare loop of ``benchmarks/bare.py`` on this workload."""
    images, labels = workload.raw()
    return _bare_module().Bare(
        workload.make_model,
        workload.transform(images, None, torch.float32),
        labels,
        clients=workload.clients,
        cohort=workload.cohort,
        epochs=workload.epochs,
        batch_size=workload.batch_size,
    )


def _bare_module() -> Any:
    """benchmarks/bare.py of the checkout that this package is installed from."""
    path = Path(fedvra.__file__).parents[2] / "benchmarks" / "bare.py"
    if not path.is_file():
        raise FedvraError("benchmarks/bare.py is not installed: run `fedvra bench` from a checkout of the repository.")
    spec = importlib.util.spec_from_file_location("fedvra_bare_loop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
