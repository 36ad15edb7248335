"""What a run came to: the content of summary.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from fedvra.core.goals import MODEL, figure
from fedvra.runs.algorithm_text import label_of
from fedvra.runs.history import rounds_to, rounds_to_stay, series, summarise, time_to
from fedvra.runs.memory import peak_rss_mb

Record: TypeAlias = dict[str, Any]
Status = Literal["finished", "diverged", "interrupted", "failed"]


class About(Protocol):
    """What a summary says of the run besides its records."""

    @property
    def task(self) -> str: ...

    @property
    def algorithm(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def targets(self) -> tuple[Any, ...]: ...

    @property
    def deploy(self) -> str | None: ...


@dataclass(frozen=True)
class RunSummary:
    """What a run came to: the content of summary.json."""

    task: str
    algorithm: str
    label: str
    seed: int
    status: Status
    message: str | None
    """Why it did not finish."""
    rounds: int
    final_accuracy: float | None
    """Of the model that the run is for: see ``deploy``."""
    best_accuracy: float | None
    rounds_to: dict[str, int | None]
    """First round at or above each target in per cent; None where it was not reached."""
    seconds: float
    seconds_per_round: float | None
    steps_per_second: float | None
    bytes_up: int
    bytes_down: int
    peak_rss_mb: float | None
    """None where the system does not tell."""
    path: str | None = None
    """Which way local steps were taken at the end."""
    path_reason: str | None = None
    """Why not a faster one."""
    state_drift: float | None = None
    """||lam - sum_i omega_i*lam_i|| at the end, round-off where duals are kept in float32; None for a run cut short."""

    simulated_time: float | None = None
    """Simulated seconds in all, where a system tells the time."""
    time_to: dict[str, float | None] | None = None
    """Simulated seconds to each target; None where no system tells the time."""
    stopped: str | None = None
    """Why the run ended before its last round, where somebody who looked on ended it."""

    epsilon: float | None = None
    """What the privacy of the client that spent most has come to, where there is any."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The run's own metrics of the model that it is for, as they were at the end."""
    deploy: str = "x0"
    """Which model accuracies and targets are of: x0, mean or ema:FACTOR."""
    x0_final_accuracy: float | None = None
    """Of x0, where the run is for another model."""
    x0_best_accuracy: float | None = None
    rounds_to_stay: dict[str, int | None] = field(default_factory=dict)
    """First round from which on each target is held to the end; None where it is not."""
    worst_fall: float | None = None
    """The largest fall of accuracy from one evaluated round to the next, from round 20 on."""

    @classmethod
    def of(
        cls,
        run: About,
        metrics: list[Record],
        status: Status,
        message: str | None,
        drift: float | None,
        label: str | None = None,
        names: Iterable[str] = (),
    ) -> RunSummary:
        figures = {
            **summarise(metrics),
            "rounds_to": rounds_to(metrics, run.targets),
            "rounds_to_stay": rounds_to_stay(metrics, run.targets),
            "time_to": time_to(metrics, run.targets) if metrics and "simulated_time" in metrics[-1] else None,
            "peak_rss_mb": peak_rss_mb(),
            "state_drift": drift,
            "path": next((m["path"] for m in reversed(metrics) if "path" in m), None),
            "path_reason": next((m["path_reason"] for m in reversed(metrics) if "path_reason" in m), None),
        }
        plain = dict.fromkeys(name.removeprefix(MODEL) for name in names)  # of the model to deploy, whichever that is
        figures["metrics"] = {name: value for name in plain if (value := _last(metrics, MODEL + name)) is not None}
        figures["deploy"] = deploy = run.deploy or "x0"
        x0 = [value for _, value in series(metrics, "test_accuracy")] if deploy != "x0" else []
        figures |= {"x0_final_accuracy": x0[-1] if x0 else None, "x0_best_accuracy": max(x0, default=None)}
        figures |= {"epsilon": _last(metrics, "epsilon"), "stopped": metrics[-1].get("stopped") if metrics else None}
        label = label_of(run.algorithm) if label is None else label
        return cls(run.task, run.algorithm, label, run.seed, status, message, **figures)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _last(metrics: list[Record], name: str) -> float | None:
    """The value in the last record that has one."""
    return next((value for m in reversed(metrics) if (value := figure(m, name)) is not None), None)
