"""The rounds of a federation one after the other, and those who look on: the same callbacks as in the simulator."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.following import Following
from fedvra.core.adaptive import chosen
from fedvra.core.cohort import Cohort
from fedvra.core.deploy import Deployed
from fedvra.core.errors import UsageError
from fedvra.flower.evaluating import labelled
from fedvra.flower.exchange import exchange
from fedvra.flower.private import private_files
from fedvra.flower.protocol import to_array
from fedvra.flower.uploads import Upload
from fedvra.problems.base import Problem, module_of
from fedvra.runs.files import Record, finite

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

RECORDS = "records.jsonl"
"""In the server's folder, where callbacks look on: what they go by after a restart."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def run_rounds(
    strategy: Strategy,
    grid: Grid,
    num_rounds: int,
    evaluate_fn: Evaluate | None,
    callbacks: Sequence[Callback | Callable[[Record], object]],
) -> Result:
    """Run them up to number ``num_rounds``, or until a callback stops the run."""
    result, e = Result(), strategy.experiment
    file = strategy.folder / RECORDS
    if callbacks and not strategy.records:
        strategy.records += _stored(file, strategy.books.round)
    run = Run(
        num_rounds,
        title=e.algorithm.label,
        task="federation",
        algorithm=e.algorithm.name,
        label=e.algorithm.label,
        seed=e.seed,
        records=strategy.records,
        experiment=e,
        server=strategy.books,
    )

    def one() -> Record:
        log(INFO, "[ROUND %s/%s]", strategy.books.round + 1, num_rounds)
        result.train_metrics_clientapp[strategy.books.round + 1] = strategy.play(grid)
        number, record = strategy.books.round, strategy.records[-1]
        if strategy.evaluate_every and number % strategy.evaluate_every == 0:
            messages = list(strategy.configure_evaluate(number, ArrayRecord(), ConfigRecord(), grid))
            found = strategy.aggregate_evaluate(number, exchange(grid, messages, strategy.timeout))
            if found is not None:
                log(INFO, "\t%s", found)
                result.evaluate_metrics_clientapp[number] = found
        if evaluate_fn is not None and (found := evaluate_fn(number, strategy.arrays())) is not None:
            log(INFO, "\t%s", found)
            result.evaluate_metrics_serverapp[number] = found
            record.update({name: value for name, value in found.items() if name not in record})
        return record

    with Following(run, callbacks) as following:
        while not run.over:
            record = following.round(one)
            if callbacks:
                _keep(file, record)
    if run.stopped is not None:
        log(INFO, "stopped: %s", run.stopped)
    result.arrays = strategy.arrays()
    return result


def as_arrays(problem: Problem, model: Deployed) -> ArrayRecord:
    """A model as Flower's own strategies have it, a state_dict; flat where there is no module."""
    try:
        return ArrayRecord(module_of(problem, model.x, model.aux).state_dict())
    except UsageError:
        return ArrayRecord({"x0": to_array(model.x)})


def note_round(
    strategy: Strategy,
    cohort: Cohort,
    uploads: Mapping[int, Upload],
    why: dict[int, str],
    refused: list[int],
    loss: float | None,
) -> MetricRecord:
    """Write down what became of a round; the same for Flower."""
    e, counted = strategy.experiment, sorted(uploads)
    loss = None if loss is None or math.isnan(loss) else loss
    epsilon = max((upload.epsilon for upload in uploads.values()), default=0.0)
    picked = chosen(e.algorithm, cohort)
    record = {
        "round": strategy.books.round,
        "cohort": cohort.clients.tolist(),
        "counted": counted,
        "lost": why,
        **({} if e.refuse is None else {"refused": refused}),
        "train_loss": loss,
        **({"epsilon": epsilon} if epsilon else {}),
        **picked,
    }
    strategy.records.append(record)
    shown = float("nan") if loss is None else loss
    log(INFO, "round %s: %s of %s counted, train loss %.4f", strategy.books.round, len(counted), len(cohort), shown)
    return MetricRecord({"train_loss": shown, "counted": len(counted), "cohort": len(cohort), **picked})


def results_of_nodes(strategy: Strategy, found: dict[str, Any]) -> MetricRecord | None:
    """Into the round's record, and as Flower wants it."""
    if not found:
        return None
    strategy.records[-1]["clients"] = found
    return labelled(found)


def _stored(file: Path, rounds: int) -> list[Record]:
    """The records of the rounds that the books have."""
    if not file.exists():
        return []
    found: dict[int, Record] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # a last line that a crash cut short
            break
        found[record["round"]] = record
    return [found[r] for r in sorted(found) if r <= rounds]


def _keep(file: Path, record: Record) -> None:
    plain = {name: value for name, value in record.items() if name != "audit"}
    with private_files(file.parent), file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(finite(plain), default=str) + "\n")
