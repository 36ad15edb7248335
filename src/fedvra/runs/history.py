"""What a run leaves behind in memory: the final model, the duals, one record per round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Floats
from fedvra.core.errors import require
from fedvra.core.goals import figure, goals
from fedvra.core.objects import Value, equal
from fedvra.local.protocol import StepPath
from fedvra.problems.base import Problem, module_of
from fedvra.runs.inline import history_figure, study_html
from fedvra.state.model_file import save_model
from fedvra.state.row_books import RowBooks

TARGETS = (50, 60, 70, 80, 90, 95, 97, 98, 99)


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

    ``x0`` is the final model as a flat vector and ``model()`` the same as an ``nn.Module``. ``metrics`` has one record per
    round (``to_pandas()`` as a table, ``plot()`` as a figure), ``duals`` the lam_i of every client that took part.
    ``save(path)`` writes the model to a file. In a notebook a history shows itself.

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

    __hash__ = None  # type: ignore[assignment]  # records may be added

    def __repr__(self) -> str:
        best = self.summary()["best_accuracy"]
        reached = "" if best is None else f", best accuracy {best:.2%}"
        return f"<History of {len(self.metrics)} rounds, {len(self.x0):,} parameters{reached}>"

    def model(self) -> torch.nn.Module:
        """The global model as an ``nn.Module``."""
        return module_of(self.problem, self.x0, self.aux)

    def save(self, path: str | Path) -> Path:
        """Write the global model, its ``state_dict`` under the module's own names, to a file that ends in ``.safetensors``.

        ``fv.load_model(path, model)`` reads it again; so does whatever reads safetensors.
        """
        return save_model(self.model(), path)

    def to_pandas(self) -> Any:
        """The records as a DataFrame (needs the extra ``fedvra[pandas]``)."""
        import pandas

        return pandas.DataFrame(self.metrics)

    def plot(self, *names: str) -> Any:
        """Numbers of the records over the rounds, as a matplotlib figure: those named, or accuracy and loss."""
        asked = names or ("test_accuracy", "test_loss", "train_loss")
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


def accuracies(metrics: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(round, test accuracy) of the rounds that were evaluated."""
    return series(metrics, "test_accuracy")


def series(metrics: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(round, value) of the rounds that have a number of that name, which may be nested: ``diagnostics/xi``."""
    found = ((record["round"], figure(record, name)) for record in metrics)
    return [(round, value) for round, value in found if value is not None]


def rounds_to(metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS) -> dict[str, int | None]:
    """First round to reach each target, an accuracy in per cent or another figure; None where it was not reached.

    >>> rounds_to([{"round": 1, "test_accuracy": 0.4}, {"round": 2, "test_accuracy": 0.91}], [50, 90, 95, "f1=0.3"])
    {'50': 2, '90': 2, '95': None, 'f1=0.3': None}
    """
    records = list(metrics)
    return {str(goal): next((m["round"] for m in records if goal.reached(m)), None) for goal in goals(targets)}


def bytes_to(
    metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS, protocol: str = "here"
) -> dict[str, int | None]:
    """Bytes sent, up and down together, until each target was first reached; None where it was not.

    Args:
        protocol: ``"here"``, or ``"original"`` for what the algorithm as published would have sent in these rounds.

    >>> sent = {"bytes_up": 8, "bytes_down": 4, "bytes_up_original": 16, "bytes_down_original": 8}
    >>> metrics = [{"round": r, "test_accuracy": a, **sent} for r, a in [(1, 0.4), (2, 0.91)]]
    >>> bytes_to(metrics, [90, 95]), bytes_to(metrics, [90, 95], "original")
    ({'90': 24, '95': None}, {'90': 48, '95': None})
    """
    records = list(metrics)
    total = dict(zip((m["round"] for m in records), accumulate(sent(m, protocol) for m in records), strict=True))
    return {target: None if r is None else total[r] for target, r in rounds_to(records, targets).items()}


def time_to(metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS) -> dict[str, float | None]:
    """Simulated seconds until each target was first reached; None where it was not, or where no system told the time.

    >>> time_to([{"round": 1, "test_accuracy": 0.4, "simulated_time": 7.5}], [30, 50])
    {'30': 7.5, '50': None}
    """
    records = list(metrics)
    time = {m["round"]: m.get("simulated_time") for m in records}
    return {target: None if r is None else time[r] for target, r in rounds_to(records, targets).items()}


def sent(record: Mapping[str, Any], protocol: str = "here") -> int:
    """Bytes of one round, up and down together, as sent ``"here"`` or by the ``"original"`` protocol."""
    ending = {"here": "", "original": "_original"}[protocol]
    return int(record[f"bytes_up{ending}"] + record[f"bytes_down{ending}"])


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """All finite numbers of a record but the round's own, nested ones by their path.

    >>> numbers({"round": 3, "test_accuracy": None, "seconds": 0.5, "cohort": [1], "diagnostics": {"xi": 2.0}})
    {'seconds': 0.5, 'diagnostics/xi': 2.0}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found.update({f"{name}/{inner}": each for inner, each in numbers(value).items()})
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = float(value)
    found.pop("round", None)
    return found


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
        "seconds": total,
        "seconds_per_round": total / len(metrics) if metrics else None,
        "steps_per_second": steps / total if total else None,
        "bytes_up": sum(m.get("bytes_up", 0) for m in metrics),
        "bytes_down": sum(m.get("bytes_down", 0) for m in metrics),
        "simulated_time": metrics[-1].get("simulated_time") if metrics else None,
    }
