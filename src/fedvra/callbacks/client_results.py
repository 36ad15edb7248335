"""What single clients see: the global model on each client's own held-out data, and their training losses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedvra.callbacks.base import Callback, Run
from fedvra.core.block import Block
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.goals import smaller_is_better
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole
from fedvra.data.dataset import FederatedData
from fedvra.engines.evaluation import ClientScores
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.engines.worker import FineTune
from fedvra.runs.files import Record
from fedvra.samplers.base import random_subset

QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}


@dataclass(frozen=True)
class ClientResults(Callback):
    """Every K-th record gets an object ``clients``: the model one would deploy, on each client's own held-out data.

    For ``accuracy``, ``loss`` and every metric of the run: ``mean`` and ``std`` over the clients, ``by_samples`` (the mean
    weighted by their samples), ``worst_tenth`` (the mean of the worst tenth of them), quantiles ``q10`` to ``q90``, and
    ``small`` and ``large``, the means of the quarters of clients with the fewest and the most samples. Clients who never train
    (``fv.split(..., unseen=10)``) have an object ``unseen`` of their own.

    The data are those of ``fv.split(..., test_share=0.2)``. The cost is a forward pass over the held-out data looked at.

    Args:
        every: K.
        clients: look at so many of the clients that train at most, the same ones every time; None: at all.
        tune: also test each client after so many local steps on its own training data (personalisation), as ``tuned_accuracy``
            and so on; 0: not. Steps begin at that model, without dual or pull, and leave no trace.

    >>> import numpy as np, torch, fedvra as fv
    >>> pair = np.zeros((40, 3), dtype=np.float32), np.arange(40) % 2
    >>> history = fv.simulate(
    ...     fv.FedAvg(), problem=fv.Supervised(lambda: torch.nn.Linear(3, 2)),
    ...     data=fv.split(pair, fv.IID(), clients=4, test_share=0.2), sampler=fv.Full(), work=fv.Steps(1), rounds=2,
    ...     callbacks=[fv.ClientResults(every=2)], workers=1,
    ... )
    >>> sorted(history.metrics[1]["clients"]["accuracy"])[:3]
    ['by_samples', 'large', 'mean']
    """

    every: int = 10
    clients: int | None = None
    tune: int = 0

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        check_whole("tune", self.tune, least=0)
        require(self.clients is None or check_whole("clients", self.clients) > 0, "")

    def check(self, experiment: Experiment) -> None:
        data = experiment.data
        held = isinstance(data, FederatedData) and (data.test_offsets is not None or data.unseen > 0)
        require(held, "clients' own results need data of their own: fv.split(..., test_share=0.2) sets some aside.")

    def on_round(self, run: Run, record: Record) -> None:
        federation = run.federation
        if record["round"] % self.every:
            return
        data: FederatedData = federation.experiment.data
        if data.test_offsets is not None:
            chosen = np.arange(data.clients)
            if self.clients is not None and self.clients < data.clients:
                rng = stream(federation.experiment.seed, Purpose.PROBE, round=1)
                chosen = random_subset(rng, data.clients, self.clients)
            record["clients"] = self._of(federation, chosen)
        if data.unseen:
            record["unseen"] = self._of(federation, data.clients + np.arange(data.unseen))

    def _of(self, federation: Federation, clients: Ints) -> dict[str, Any]:
        data: FederatedData = federation.experiment.data
        rows = [data.own_test(int(client)) for client in clients]
        clients = clients[[len(part) > 0 for part in rows]]
        rows = [part for part in rows if len(part)]
        sizes = np.diff(data.offsets)[clients]
        model = federation.state.deployed
        found: dict[str, Any] = described(federation.evaluator.of_clients(model, clients, rows, None), sizes)
        tunable = data.test_offsets is not None  # else unseen clients have nothing left to tune on
        if self.tune and tunable:
            steps = partial(self._steps, federation, clients)
            scores = federation.evaluator.of_clients(model, clients, rows, steps)
            tuned = described(scores, sizes)
            found.update({f"tuned_{name}": value for name, value in tuned.items() if isinstance(value, Mapping)})
        return found

    def _steps(self, federation: Federation, clients: Ints, k: int) -> FineTune:
        e, last, client = federation.experiment, federation.state.round, int(clients[k])
        known = min(client, federation.total - 1)  # one who never trains steps as the last who does
        eta = federation.plan.describe(last, np.array([known]), federation.state.counts).eta
        block = Block(last, e.seed, np.array([client]), np.array([self.tune]), eta)
        return FineTune(block, e.problem.decay)


@dataclass(frozen=True)
class TrainLosses(Callback):
    """Every record gets ``train_losses``: the mean training loss of each cohort member, in the order of ``cohort``.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> history = fv.simulate(
    ...     fv.FedAvg(), problem=costs, sampler=fv.Uniform(2), work=fv.Steps(1), rounds=1, callbacks=[fv.TrainLosses()]
    ... )
    >>> len(history.metrics[0]["train_losses"]) == len(history.metrics[0]["cohort"])
    True
    """

    def on_round(self, run: Run, record: Record) -> None:
        losses = run.federation.work.losses if record["cohort"] else np.empty(0)
        record["train_losses"] = [float(value) for value in losses]


def described(scores: ClientScores, sizes: Ints) -> dict[str, Any]:
    """What is to be said of all clients' figures together; ``sizes`` are their training samples.

    >>> scores = ClientScores(np.arange(4), np.array([1, 1, 1, 5]), {"accuracy": np.array([0.0, 0.5, 0.5, 1.0])})
    >>> found = described(scores, np.array([1, 2, 3, 4]))["accuracy"]
    >>> found["mean"], found["by_samples"], found["worst_tenth"], found["median"], found["large"]
    (0.5, 0.75, 0.0, 0.5, 1.0)
    """
    found: dict[str, Any] = {"count": len(scores.clients), "samples": int(scores.samples.sum())}
    for name, values in scores.figures.items():
        there = ~np.isnan(values)
        found[name] = _figures(name, values[there], scores.samples[there], sizes[there])
    return found


def _figures(name: str, values: Floats, samples: Ints, sizes: Ints) -> dict[str, float]:
    worst = np.sort(values)[::-1] if smaller_is_better(re.sub("^tuned_", "", name)) else np.sort(values)
    by_size = values[np.argsort(sizes, kind="stable")]
    quarter, tenth = -(-len(values) // 4), -(-len(values) // 10)
    made = {
        "mean": values.mean(),
        "std": values.std(),
        "by_samples": np.average(values, weights=samples),
        "worst_tenth": worst[:tenth].mean(),
        **{label: np.quantile(values, q) for label, q in QUANTILES.items()},
        "small": by_size[:quarter].mean(),
        "large": by_size[-quarter:].mean(),
    }
    return {label: float(value) for label, value in made.items()}
