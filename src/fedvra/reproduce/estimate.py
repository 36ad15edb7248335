"""How long runs will take, before they are started.

The time of a round is taken to be in proportion to the local work in it: clients of the cohort times the epochs (or steps) of
each. The factor comes from runs of the same task, model and batch that lie in the folders looked through (the median of those
with one worker), and where there is none, from the second and third round of one that is started for the purpose and thrown
away. Runs side by side slow each other down a little, so it is a lower bound rather than a promise.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedvra.core.threads import one_thread
from fedvra.engines.federation import Federation
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import Cache
from fedvra.runs.config import build, configure
from fedvra.runs.options import RunConfig

Kind: TypeAlias = tuple[Any, ...]
MEASURED = 3
"""Rounds that are run to find out; the first of them, which prepares the fast paths, does not count."""


@dataclass(frozen=True)
class Estimate:
    """Seconds on one core, run by run, and where they come from."""

    seconds: tuple[float, ...]
    """In the order of the runs."""
    basis: str

    def total(self, jobs: int) -> float:
        """With so many runs at a time."""
        return sum(self.seconds) / max(1, min(jobs, len(self.seconds)))


def estimate(wanted: list[Wanted], cache: Cache) -> Estimate:
    """What is still to be run, with one worker each."""
    if not wanted:
        return Estimate((), "nothing is missing")
    earlier = {kind: statistics.median(costs) for kind, costs in _earlier(cache).items()}
    measured: dict[Kind, float] = {}
    for run in wanted:
        kind = _kind(run.config)
        if kind not in earlier and kind not in measured:
            measured[kind] = _measure(run.config)
    known = {**earlier, **measured}
    seconds = tuple(run.config.rounds * _work(run.config) * known[_kind(run.config)] for run in wanted)
    timed = f"{MEASURED} rounds timed now" if measured else ""
    found = "earlier runs" if len(measured) < len({_kind(run.config) for run in wanted}) else ""
    return Estimate(seconds, f"from {' and '.join(filter(None, (found, timed)))}")


def _earlier(cache: Cache) -> dict[Kind, list[float]]:
    """Seconds per unit of work, by kind of run."""
    costs: dict[Kind, list[float]] = {}
    for run in cache.every():
        config = configure(run.config)
        if config.workers == 1 and run.rounds >= MEASURED:
            costs.setdefault(_kind(config), []).append(run.seconds / run.rounds / _work(config))
    return costs


def _measure(config: RunConfig) -> float:
    with one_thread(), closing(Federation(build(config), workers=1)) as federation:
        federation.preflight()
        records: list[Mapping[str, Any]] = [federation.round() for _ in range(MEASURED)]
    return statistics.fmean(record["seconds"] for record in records[1:]) / _work(config)


def _kind(config: RunConfig) -> Kind:
    """Runs of one kind cost about the same per unit of work."""
    counted = "epochs" if config.steps is None else "steps"
    return (config.task, config.model, config.batch_size, config.precision, config.device, counted)


def _work(config: RunConfig) -> float:
    """Epochs (or steps) of all clients in a round, on average."""
    if config.steps is not None:
        return config.cohort * config.steps
    low, _, high = str(config.epochs).partition("-")
    return config.cohort * (int(low) + int(high or low)) / 2
