"""The rounds of a federation one after the other, and those who look on: the same callbacks as in the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.following import Following
from fedvra.core import rule
from fedvra.core.adaptive import chosen
from fedvra.core.cohort import Cohort
from fedvra.core.deploy import Deployed
from fedvra.core.errors import FedvraError
from fedvra.engines.cohort_work import traffic
from fedvra.flower.count_uploads import Outcome
from fedvra.flower.evaluating import labelled
from fedvra.flower.exchange import exchange
from fedvra.flower.run_files import RunFiles, VoidRounds, begin_or_resume, is_void
from fedvra.problems.base import Problem, state_dict_of
from fedvra.runs.files import Record

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def run_rounds(
    strategy: Strategy,
    grid: Grid,
    num_rounds: int,
    evaluate_fn: Evaluate | None,
    callbacks: Sequence[Callback | Callable[[Record], object]],
) -> Result:
    """Run ``num_rounds`` rounds in all, void ones not counted, or until a callback stops the run."""
    result, e, books = Result(), strategy.experiment, strategy.books
    folder = begin_or_resume(strategy, num_rounds)
    run = Run(
        num_rounds + books.voids,
        title=e.algorithm.label,
        task="federation",
        algorithm=e.algorithm.name,
        label=e.algorithm.label,
        seed=e.seed,
        folder=folder.path,
        records=strategy.records,
        experiment=e,
        server=books,
    )

    def one() -> Record:
        log(INFO, "[ROUND %s/%s]", books.round + 1, run.rounds)
        started = time.perf_counter()
        if strategy.records and is_void(strategy.records[-1]) and not strategy.roster.nodes:
            _wait(strategy, grid)  # rather than play one void round after another in no time
        result.train_metrics_clientapp[books.round + 1] = strategy.play(grid)
        number, record = books.round, strategy.records[-1]
        record["seconds"] = record["seconds_training"] = time.perf_counter() - started
        run.rounds = num_rounds + books.voids
        if strategy.evaluate_every and number % strategy.evaluate_every == 0:
            messages = list(strategy.configure_evaluate(number, ArrayRecord(), ConfigRecord(), grid))
            found = strategy.aggregate_evaluate(number, exchange(grid, messages, strategy.timeout))
            if found is not None:
                log(INFO, "\t%s", found)
                result.evaluate_metrics_clientapp[number] = found
        if evaluate_fn is not None and (found := evaluate_fn(number, strategy.arrays())) is not None:
            log(INFO, "\t%s", found)
            result.evaluate_metrics_serverapp[number] = found
            record.update({name: value for name, value in found.items() if record.get(name) is None})
        return record

    with Following(run, [VoidRounds(strategy.max_void), RunFiles(folder), *callbacks]) as following:
        while not run.over:
            following.round(one)
    if run.stopped is not None:
        log(INFO, "stopped: %s", run.stopped)
    result.arrays = strategy.arrays()
    return result


def as_arrays(problem: Problem, model: Deployed) -> ArrayRecord:
    """A model as Flower's own strategies have it, a state_dict; flat where there is no module."""
    return ArrayRecord(state_dict_of(problem, model))


def note_round(
    strategy: Strategy,
    cohort: Cohort,
    outcome: Outcome,
    row: rule.Coefficients | None,
    asked: int,
) -> MetricRecord:
    """Write down what became of a round, with the names of the simulator's records; the same for Flower."""
    e, books = strategy.experiment, strategy.books
    counted, why, refused, loss, epsilon = outcome[:5]
    picked = chosen(e.algorithm, cohort)
    sent = {} if row is None else traffic(e, books.x0, books.aux, row, asked, len(counted) + len(refused))
    if outcome.up is not None:
        sent |= {"up": outcome.up, "down": sent["down"] + asked * outcome.table}
    record = {
        "round": books.round,
        "test_accuracy": None,
        "test_loss": None,
        "train_loss": loss,
        **{f"bytes_{way}": sent.get(way, 0) for way in ("up", "down", "up_original", "down_original")},
        "local_steps": int(cohort.steps[np.isin(cohort.clients, counted)].sum()),
        "cohort": cohort.clients.tolist(),
        "counted": counted,
        "lost": why,
        **({} if e.refuse is None else {"refused": refused}),
        **({"epsilon": epsilon} if epsilon else {}),
        **({"clipped": outcome.clipped} if outcome.clipped else {}),
        **picked,
        **strategy.changes,
    }
    strategy.records.append(record)
    books.record = record
    books.voids += is_void(record)
    shown = float("nan") if loss is None else loss
    numbers = {name: value for name, value in picked.items() if isinstance(value, float)}
    log(INFO, "round %s: %s of %s counted, train loss %.4f", books.round, len(counted), len(cohort), shown)
    return MetricRecord({"train_loss": shown, "counted": len(counted), "cohort": len(cohort), **numbers})


def results_of_nodes(strategy: Strategy, found: dict[str, Any]) -> MetricRecord | None:
    """Into the round's record, and as Flower wants it."""
    if not found:
        return None
    strategy.records[-1]["clients"] = found
    return labelled(found)


def _wait(strategy: Strategy, grid: Grid) -> None:
    """Until somebody is connected again, or ``wait`` is over."""
    try:
        strategy.roster.gather(grid, set(), strategy.wait, strategy.timeout)
    except FedvraError as nobody:
        log(WARNING, "%s", nobody)
