"""What a run leaves behind in memory: the final model, the duals, one record per round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Floats
from fedvra.core.deploy import X0, Deploy, Deployed
from fedvra.core.errors import require
from fedvra.core.objects import Value, equal
from fedvra.local.protocol import StepPath
from fedvra.problems.base import Problem, module_of
from fedvra.runs.inline import history_figure, study_html
from fedvra.runs.measures import TARGETS as TARGETS
from fedvra.runs.measures import accuracies as accuracies
from fedvra.runs.measures import bytes_to as bytes_to
from fedvra.runs.measures import numbers as numbers
from fedvra.runs.measures import rounds_to as rounds_to
from fedvra.runs.measures import rounds_to_stay as rounds_to_stay
from fedvra.runs.measures import sent as sent
from fedvra.runs.measures import series as series
from fedvra.runs.measures import time_to as time_to
from fedvra.runs.measures import worst_fall as worst_fall
from fedvra.state.model_file import save_model
from fedvra.state.row_books import RowBooks


class ClientRows(Mapping[int, Tensor]):
    """The state of every client that ever took part, by client number: copies, made when asked for."""

    def __init__(self, store: RowBooks) -> None:
        self._store = store

    def __getitem__(self, client: int) -> Tensor:
        if client not in self._store:
            raise KeyError(client)
        return self._store.get(client).clone()

    def __iter__(self) -> Iterator[int]:
        return iter(self._store.clients())

    def __len__(self) -> int:
        return len(self._store)

    def __eq__(self, other: object) -> bool:
        return equal(dict(self), other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """Copies hold the rows themselves: the store is memory or a disk of this process."""
        return dict, (dict(self),)


@dataclass(repr=False)
class History(Value):
    """The result of :func:`fedvra.simulate`.

    ``x0`` is the global model after the last round as a flat vector, ``model()`` the one to deploy as an ``nn.Module`` (flat:
    ``deployed``), and ``deploy`` says which one that is. ``metrics`` has one record per round (``to_pandas()`` as a table,
    ``plot()`` as a figure), ``duals`` the lam_i of every client that took part. ``save(path)`` writes the model to a file. In a
    notebook a history shows itself.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> history = fv.simulate(fv.FedAvg(), problem=costs, sampler=fv.Full(), work=fv.Steps(20), lr=0.5, rounds=3)
    >>> [round(number, 3) for number in history.x0.tolist()], len(history.metrics)
    ([1.0, 1.0], 3)
    """

    problem: Problem
    x0: Tensor
    """The global model, flat [P]."""
    lam: Tensor
    """The server's dual, sum_i omega_i*lam_i."""
    aux: Tensor | None = None
    """Float buffers of the global model, flat [K], where it has any."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """One record per round."""
    duals: Mapping[int, Tensor] = field(default_factory=dict)
    """lambda_i of every client that ever took part; all others are at zero."""
    y: Mapping[int, Tensor] = field(default_factory=dict)
    """The second block of every client that ever took part, as stored: flat, with zeros past a client's own numbers."""
    trajectory: Tensor | None = None
    """x0 after each round [R, P], where asked for with keep="x0"."""
    omega: Floats = field(default_factory=lambda: np.empty(0))
    """The clients' weights [N], summing to 1."""
    path: StepPath = field(default_factory=lambda: StepPath(""))
    """Which way local steps were taken, and why not a faster one."""
    deploy: Deploy = X0
    """Which model the run is for."""
    other: Deployed | None = None
    """That model, where it is not x0."""

    __hash__ = None  # type: ignore[assignment]  # records may be added

    def __repr__(self) -> str:
        best = self.summary()["best_accuracy"]
        reached = "" if best is None else f", best accuracy {best:.2%}"
        return f"<History of {len(self.metrics)} rounds, {len(self.x0):,} parameters{reached}>"

    @property
    def deployed(self) -> Tensor:
        """The model to deploy, flat [P]: x0, unless the run is for another."""
        return self.x0 if self.other is None else self.other.x

    def model(self) -> torch.nn.Module:
        """The model to deploy as an ``nn.Module``."""
        return module_of(self.problem, self.deployed, self.aux if self.other is None else self.other.aux)

    def save(self, path: str | Path) -> Path:
        """Write the model to deploy, its ``state_dict`` under the module's own names, to a file that ends in ``.safetensors``.

        ``fv.load_model(path, model)`` reads it again; so does whatever reads safetensors.
        """
        return save_model(self.model(), path)

    def to_pandas(self) -> Any:
        """The records as a DataFrame (needs the extra ``fedvra[pandas]``)."""
        import pandas

        return pandas.DataFrame(self.metrics)

    def plot(self, *names: str) -> Any:
        """Numbers of the records over the rounds, as a matplotlib figure: those named, or accuracy and loss."""
        asked = names or ("model_accuracy", "model_loss", "train_loss")
        curves = {name: series(self.metrics, name) for name in asked}
        for name in names:
            require(bool(curves[name]), f"no record has a number {name!r} to plot.")
        shown = list(curves.items()) if names else [item for item in curves.items() if item[1]][:2]
        return history_figure(dict(shown), repr(self)[1:-1])

    def _repr_html_(self) -> str:
        summary = self.summary()
        reached = ", ".join(
            f"{target}% at {round}" for target, round in summary["rounds_to"].items() if round is not None
        )
        figures = {
            "rounds": str(summary["rounds"]),
            "parameters": f"{len(self.x0):,}",
            "model": self.deploy.words,
            "final accuracy": _percent(summary["final_accuracy"]),
            "best accuracy": _percent(summary["best_accuracy"]),
            "reached": reached or "-",
            "seconds": f"{summary['seconds']:.1f}",
        }
        return study_html("History", list(figures), [list(figures.values())], self.plot() if self.metrics else None)

    def state_drift(self) -> float:
        """||lam - sum_i omega_i*lam_i||: what keeping the duals in bfloat16 has cost; round-off otherwise."""
        return dual_drift(self.lam, self.duals.items(), self.omega)

    def summary(self) -> dict[str, Any]:
        """Final and best accuracy, rounds to each target, time per round."""
        return summarise(self.metrics)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def dual_drift(lam: Tensor, duals: Iterable[tuple[int, Tensor]], omega: Floats) -> float:
    """||lam - sum_i omega_i*lam_i||: round-off, and more where the duals are kept in bfloat16.

    >>> dual_drift(torch.tensor([1.0, 0.5]), [(0, torch.tensor([2.0, 1.0]))], np.array([0.5, 0.5]))
    0.0
    """
    difference = lam.to(torch.float64, copy=True)
    for client, row in duals:
        difference.sub_(row.double(), alpha=float(omega[client]))
    return float(difference.norm())


def summarise(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of summary.json that follow from the records alone."""
    curve = accuracies(metrics)
    seconds = [m.get("seconds", 0.0) for m in metrics]
    steps = sum(m.get("local_steps", 0) for m in metrics)
    total = sum(seconds)
    return {
        "rounds": len(metrics),
        "final_accuracy": curve[-1][1] if curve else None,
        "best_accuracy": max(a for _, a in curve) if curve else None,
        "rounds_to": rounds_to(metrics),
        "rounds_to_stay": rounds_to_stay(metrics),
        "worst_fall": worst_fall(metrics),
        "seconds": total,
        "seconds_per_round": total / len(metrics) if metrics else None,
        "steps_per_second": steps / total if total else None,
        "bytes_up": sum(m.get("bytes_up", 0) for m in metrics),
        "bytes_down": sum(m.get("bytes_down", 0) for m in metrics),
        "simulated_time": metrics[-1].get("simulated_time") if metrics else None,
    }
