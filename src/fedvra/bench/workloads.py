"""The workloads that are timed, on made-up data of the right shapes: speed does not depend on what the pixels show.

A workload is written in the public names of ``fedvra`` alone, since ``fedvra bench --against`` runs this very file on another
checkout, whose modules may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.bench.networks import NETWORKS

if TYPE_CHECKING:
    from fedvra.algorithms.base import Algorithm
    from fedvra.data.dataset import FederatedData, Transform
    from fedvra.engines.experiment import Experiment
    from fedvra.local.protocol import SolverSettings

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: fv.FedAvg(),
    "fedvra": lambda: fv.FedVRA(gamma=0.1, a=10, d=10),
    "scaffold": lambda: fv.Scaffold(),
}
"""What can be timed: an algorithm that keeps nothing, one with a dual per client, one that also sends the server's dual."""


@dataclass(frozen=True)
class Workload:
    """FedAvg-style rounds over N clients of equal size, m of which take part."""

    title: str
    model: str
    """One of ``NETWORKS``, or of the models that ``fedvra`` knows by name."""
    shape: tuple[int, ...]
    """Of one sample: [channels, height, width] of an image, [length, features] of a sequence."""
    clients: int
    samples: int
    """Samples per client."""
    cohort: int
    epochs: int
    batch_size: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    buffers: str = "refuse"
    cold: bool = False
    """Whether nobody has been met before when the clock starts; then a bare loop that keeps state is timed too."""

    @property
    def client_steps(self) -> int:
        return self.cohort * self.epochs * -(-self.samples // self.batch_size)

    def make_model(self) -> nn.Module:
        if self.model in NETWORKS:
            return NETWORKS[self.model](self.shape, 10)
        from fedvra.models import MODELS

        return MODELS.get(self.model)(self.shape, 10)

    def raw(self) -> tuple[Tensor, Tensor]:
        """Samples as they are stored (images: uint8, sequences: float32) and labels."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.clients * self.samples, *self.shape)
        if len(self.shape) == 3:
            inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        else:
            inputs = torch.randn(shape, generator=generator)
        return inputs, torch.randint(0, 10, shape[:1], generator=generator)

    @property
    def transform(self) -> Transform:
        transform: Transform = fv.Transform(self.mean, self.std)
        return transform

    def data(self) -> FederatedData:
        inputs, labels = self.raw()
        dataset = fv.Dataset("bench", inputs, labels, transform=self.transform, classes=10)
        data: FederatedData = fv.split(dataset, fv.IID(), clients=self.clients, seed=0)
        return data

    def settings(self, data: FederatedData) -> dict[str, Any]:
        """All that ``fv.simulate`` needs but the algorithm and the rounds."""
        return {
            "problem": fv.Supervised(self.make_model, weight_decay=1e-3, buffers=self.buffers),
            "data": data,
            "sampler": fv.Uniform(self.cohort),
            "work": fv.Epochs(self.epochs),
            "lr": 0.01,
            "batch_size": self.batch_size,
            "eval_every": 0,
        }

    def experiment(self, algorithm: Algorithm, data: FederatedData, solver: SolverSettings | None = None) -> Experiment:
        from fedvra.engines.experiment import Experiment

        return Experiment(algorithm=algorithm, solver=solver or fv.SolverSettings(), **self.settings(data))


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

_W3 = replace(
    _W1,
    title="MNIST MLP, N=10,000 of 6 samples, m=100, one step",
    clients=10_000,
    samples=6,
    cohort=100,
    epochs=1,
    batch_size=6,
)

_COLOUR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

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
        mean=_COLOUR[0],
        std=_COLOUR[1],
    ),
    "w3": _W3,
    "w3-cold": replace(_W3, title=f"{_W3.title}, nobody met before", cold=True),
    "w4": Workload(
        title="residual CNN with BatchNorm, colour images, N=100, m=10, 2 epochs of batch 20",
        model="resnet",
        shape=(3, 32, 32),
        clients=100,
        samples=40,
        cohort=10,
        epochs=2,
        batch_size=20,
        mean=_COLOUR[0],
        std=_COLOUR[1],
        buffers="average",
    ),
    "w5": Workload(
        title="LSTM 64 on sequences of 30 x 16, N=100, m=10, 2 epochs of batch 20",
        model="lstm",
        shape=(30, 16),
        clients=100,
        samples=100,
        cohort=10,
        epochs=2,
        batch_size=20,
    ),
    "w6": Workload(
        title="CNN (32, 64, 64) with GroupNorm and a mean over the image, colour images, N=100, m=10, 2 epochs of batch 20",
        model="cnn-groupnorm",
        shape=(3, 32, 32),
        clients=100,
        samples=40,
        cohort=10,
        epochs=2,
        batch_size=20,
        mean=_COLOUR[0],
        std=_COLOUR[1],
    ),
    "w7": replace(_W1, title="MNIST MLP with dropout, N=100, m=10, 2 epochs of batch 50", model="mlp-dropout"),
}
