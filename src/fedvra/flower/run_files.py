"""The files of a federation's run beside the server's books: the same as the simulator's, for the same tools.

    config.yaml, provenance.json   what is run, by whom and where
    metrics.jsonl, summary.json    one object per round, void ones too; what the run came to
    report.html                    written when a run ends; `fedvra report FOLDER` makes it anew at any time
    model.safetensors              the model after the last round that is in the books

Nobody but their owner can read them. After a restart the records continue where the books do.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.records import Records
from fedvra.core.errors import StopRun
from fedvra.flower.private import private_files
from fedvra.problems.base import state_dict_of
from fedvra.runs.described import config_of
from fedvra.runs.files import Record, RunFolder
from fedvra.show.page import FILE as REPORT
from fedvra.show.page import write_report
from fedvra.state.model_file import save_model

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

MODEL = "model.safetensors"


def is_void(record: Record) -> bool:
    """Whether clients were asked and nobody counted. A round for which the sampler drew nobody is none, as in the simulator."""
    return bool(record.get("cohort")) and not record.get("counted")


def begin_or_resume(strategy: Strategy, rounds: int) -> RunFolder:
    """The run's files, in line with the books: records of the rounds that these have, and no others."""
    books, own = strategy.books, {record["round"]: record for record in strategy.records}
    folder = RunFolder(strategy.folder)
    about: dict[str, Any] = {"task": "federation", "rounds": rounds, "workers": 1, "fingerprint": books.experiment[:12]}
    config = config_of(strategy.experiment, len(books.counts), **about)
    with private_files(folder.path):
        if folder.config_file.exists():
            folder.write_config(config)
        else:
            folder.create(config)
        kept = folder.rewind(books.round)
        with folder.appending() as append:
            for number in range(len(kept) + 1, books.round + 1):  # the server died before it could write the record
                last = books.record if books.record.get("round") == number else {"round": number}
                kept.append(own.get(number, {"test_accuracy": None, "seconds": 0.0, "seconds_training": 0.0, **last}))
                append(kept[-1], False)
    strategy.records[:] = [own.get(record["round"], record) for record in kept]
    if strategy.records and is_void(strategy.records[-1]):
        strategy.records[-1].pop("stopped", None)  # who starts the run again wants it to continue
    return folder


def export_model(strategy: Strategy) -> None:
    """Write the model as it is in the books."""
    with private_files(strategy.folder):
        save_model(state_dict_of(strategy.experiment.problem, strategy.books.model), strategy.folder / MODEL)


class RunFiles(Callback):
    """Records, summary and report in the server's folder."""

    afterwards: ClassVar[bool] = True

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self._records = folder, Records(folder)

    def on_start(self, run: Run) -> None:
        with private_files(self.folder.path):
            self._records.on_start(run)

    def on_round(self, run: Run, record: Record) -> None:
        self._records.on_round(run, record)

    def on_stop(self, run: Run, record: Record) -> None:
        self._records.on_stop(run, record)

    def on_end(self, run: Run) -> None:
        with private_files(self.folder.path):
            self._records.on_end(run)
            if run.records:
                write_report([self.folder.path], self.folder.path / REPORT)


class VoidRounds(Callback):
    """Ends a run after so many void rounds in a row, counted from its last start."""

    def __init__(self, most: int) -> None:
        self.most, self._first = most, 0

    def on_start(self, run: Run) -> None:
        self._first = run.round

    def on_round(self, run: Run, record: Record) -> None:
        now = [each for each in run.records if each["round"] > self._first]
        if len(list(takewhile(is_void, reversed(now)))) >= self.most:
            said = "; ".join(f"client {client} {why}" for client, why in list(record["lost"].items())[:3])
            raise StopRun(f"nobody counted in {self.most} rounds in a row ({said})")
