"""What a tracker is: a callback that hands a run's numbers on."""

from __future__ import annotations

import importlib.util
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.core.errors import UsageError, require
from fedvra.runs.files import Record, RunSummary, write_json
from fedvra.runs.history import numbers
from fedvra.runs.tracker_names import TRACKERS as TRACKERS


class Notes:
    """What trackers note of a run in its folder, so that it is the same tracked run after a resume."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "trackers.json"

    def remembered(self, tracker: str) -> dict[str, str]:
        """What :meth:`remember` was given when the run was started; empty for a new one."""
        return dict(self._notes().get(tracker, {}))

    def remember(self, tracker: str, **notes: str) -> None:
        write_json(self._file, {**self._notes(), tracker: notes})

    def _notes(self) -> dict[str, dict[str, str]]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}


class Tracker(Callback):
    """Opened when a run begins or is resumed, given every round's numbers, closed when it ends.

    One that fails during the run (its server is gone, its disk is full) is told of once and no longer spoken to: the
    numbers are in metrics.jsonl, and hours of work are worth more than a copy of them.
    """

    extra: ClassVar[str]
    """Of this distribution: ``pip install 'fedvra[EXTRA]'`` brings what it needs."""
    packages: ClassVar[tuple[str, ...]]
    """What must be importable."""
    afterwards: ClassVar[bool] = True
    failed = False

    @abstractmethod
    def open(self, run: Run, folder: Path, notes: Notes) -> None:
        """The run begins; ``run.records`` holds those of rounds before a resume."""

    @abstractmethod
    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a round: those of its record, nested ones as ``diagnostics/xi``."""

    @abstractmethod
    def close(self, run: Run, summary: RunSummary) -> None:
        """The run ended, in whatever way the summary says."""

    def on_start(self, run: Run) -> None:
        require(run.folder is not None, "a tracker keeps its notes in the run's folder: name one with out=.")
        assert run.folder is not None
        self.open(run, run.folder, Notes(run.folder))

    def on_round(self, run: Run, record: Record) -> None:
        self._try(lambda: self.record(record["round"], numbers(record)))

    def on_end(self, run: Run) -> None:
        assert run.summary is not None
        summary = run.summary
        self._try(lambda: self.close(run, summary))

    def _try(self, say: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            say()
        except Exception as error:
            self.failed = True
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"{type(self).__name__} failed and is left out from here on: {reason}", stacklevel=4)


def make_trackers(names: Iterable[str]) -> list[Callback]:
    """The trackers of these names, one of each."""
    return [TRACKERS.get(name)() for name in names]


def require_installed(names: Iterable[str]) -> None:
    """Refuse trackers whose packages are missing."""
    for name in names:
        kind = TRACKERS.get(name)
        missing = [package for package in kind.packages if importlib.util.find_spec(package) is None]
        if missing:
            raise UsageError(
                f"--track {name} needs {' and '.join(missing)}, not installed here: pip install 'fedvra[{kind.extra}]'."
            )


def outcome(summary: RunSummary) -> dict[str, float]:
    """The figures by which runs are compared, where a tracker has a place for those of a whole run."""
    figures = {
        "final_accuracy": summary.final_accuracy,
        "best_accuracy": summary.best_accuracy,
        "seconds_per_round": summary.seconds_per_round,
        "worst_fall": summary.worst_fall,
        **{f"rounds_to_{target}": reached for target, reached in summary.rounds_to.items()},
        **{f"rounds_to_stay_{target}": since for target, since in summary.rounds_to_stay.items()},
    }
    return {name: float(value) for name, value in figures.items() if value is not None}
