"""What a tracker is, and how a run speaks to those it was asked to speak to."""

from __future__ import annotations

import importlib.util
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedvra.core.errors import UsageError
from fedvra.core.registry import Registry

if TYPE_CHECKING:
    from fedvra.runs.files import RunSummary
    from fedvra.runs.options import RunConfig


@dataclass(frozen=True)
class Tracked:
    """The run as a tracker sees it."""

    name: str
    """For people: FedVRA on mnist, seed 0."""
    folder: Path
    config: RunConfig
    done: int
    """Rounds recorded before: 0 for a new run; those after it, should the tracker have them, are played again."""

    def remembered(self, tracker: str) -> dict[str, str]:
        """What :meth:`remember` was given when the run was started, so that it goes on as the same run; empty for a new one."""
        return dict(self._notes().get(tracker, {}))

    def remember(self, tracker: str, **notes: str) -> None:
        from fedvra.runs.files import write_json

        write_json(self._file, {**self._notes(), tracker: notes})

    def _notes(self) -> dict[str, dict[str, str]]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}

    @property
    def _file(self) -> Path:
        return self.folder / "trackers.json"


class Tracker(ABC):
    """Made when a run begins or goes on, given every round's numbers, closed when it ends."""

    extra: ClassVar[str]
    """Of this distribution: ``pip install 'fedvra[EXTRA]'`` brings what it needs."""
    packages: ClassVar[tuple[str, ...]]
    """What must be importable."""

    @abstractmethod
    def __init__(self, run: Tracked) -> None: ...

    @abstractmethod
    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a round: those of its record, nested ones as ``diagnostics/xi``."""

    @abstractmethod
    def close(self, summary: RunSummary) -> None:
        """The run ended, in whatever way the summary says."""


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "fedvra.runs.trackers", group="fedvra.trackers")


def require_installed(names: Iterable[str]) -> None:
    """Refuse trackers whose packages are missing."""
    for name in names:
        kind = TRACKERS.get(name)
        missing = [package for package in kind.packages if importlib.util.find_spec(package) is None]
        if missing:
            raise UsageError(
                f"--track {name} needs {' and '.join(missing)}, not installed here: pip install 'fedvra[{kind.extra}]'."
            )


class Tracking:
    """All trackers of one run as one; nothing at all where none was asked for.

    A tracker that fails while the run goes on (its server is gone, its disk is full) is told of once and no longer spoken to:
    the numbers are in metrics.jsonl, and hours of work are worth more than a copy of them.
    """

    def __init__(self, config: RunConfig, label: str, folder: Path, done: int) -> None:
        run = Tracked(f"{label} on {config.task}, seed {config.seed}", folder, config, done)
        self.trackers = [TRACKERS.get(name)(run) for name in config.track or ()]

    def record(self, record: Mapping[str, Any]) -> None:
        from fedvra.runs.history import numbers

        self._tell(lambda tracker: tracker.record(record["round"], numbers(record)))

    def close(self, summary: RunSummary) -> None:
        self._tell(lambda tracker: tracker.close(summary))

    def _tell(self, say: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                say(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                reason = f"{type(error).__name__}: {error}"
                warnings.warn(f"{type(tracker).__name__} failed and is left out from here on: {reason}", stacklevel=4)


def outcome(summary: RunSummary) -> dict[str, float]:
    """The figures by which runs are compared, where a tracker has a place for those of a whole run."""
    figures = {
        "final_accuracy": summary.final_accuracy,
        "best_accuracy": summary.best_accuracy,
        "seconds_per_round": summary.seconds_per_round,
        **{f"rounds_to_{target}": reached for target, reached in summary.rounds_to.items()},
    }
    return {name: float(value) for name, value in figures.items() if value is not None}
