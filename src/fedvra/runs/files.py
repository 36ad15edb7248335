"""The files of a run: everything it needs to be run again or to go on, one line per round, and what it came to.

    config.yaml     every option, resolved; itself a valid ``--config``
    metrics.jsonl   one object per round, written as the round ends
    checkpoint/     the state after some round, from which ``fedvra resume`` goes on; the last two are kept
    summary.json    final and best accuracy, rounds to each target, times; how the run ended
    fingerprint.json  by what model and data are known again; beside it provenance.json: command, commit, date, machine
    partition.png   who holds what

Reports are made from these files alone, so any finished run can be looked at again. A file ``.lock`` keeps two processes from
working in one folder.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from fedvra.core.errors import FedvraError, require
from fedvra.core.files import replace_durably
from fedvra.core.goals import figure
from fedvra.engines import checkpoint, fingerprint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.runs.algorithm_text import label_of
from fedvra.runs.config import configure, read_config
from fedvra.runs.history import rounds_to, summarise, time_to
from fedvra.runs.memory import peak_rss_mb
from fedvra.runs.options import RunConfig
from fedvra.runs.provenance import Provenance
from fedvra.state.folders import locked, require_unused

Record: TypeAlias = dict[str, Any]
PLAN = "plan.json"
"""The runs of a comparison, written before the first of them: what ``fedvra resume`` needs to go on."""
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
    """The run's own metrics, as they were at the end."""

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
            "time_to": time_to(metrics, run.targets) if metrics and "simulated_time" in metrics[-1] else None,
            "peak_rss_mb": peak_rss_mb(),
            "state_drift": drift,
            "path": next((m["path"] for m in reversed(metrics) if "path" in m), None),
            "path_reason": next((m["path_reason"] for m in reversed(metrics) if "path_reason" in m), None),
        }
        figures["metrics"] = {name: value for name in names if (value := _last(metrics, name)) is not None}
        figures |= {"epsilon": _last(metrics, "epsilon"), "stopped": metrics[-1].get("stopped") if metrics else None}
        label = label_of(run.algorithm) if label is None else label
        return cls(run.task, run.algorithm, label, run.seed, status, message, **figures)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.fingerprint_file = self.path / "fingerprint.json"
        self.provenance_file = self.path / "provenance.json"
        self.partition_file = self.path / "partition.png"
        self.checkpoints = self.path / "checkpoint"

    def require_unused(self) -> None:
        """Refuse a folder that holds anything or cannot be written to. Writes nothing itself."""
        require_unused(self.path)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out; refuses a folder that one of them has."""
        return locked(self.path)

    def create(self, config: RunConfig, experiment: Experiment | None = None) -> None:
        with self._writing():
            if experiment is not None:
                write_json(self.fingerprint_file, fingerprint.facts(experiment))
            Provenance.here().write(self.provenance_file)
            replace_durably(self.metrics_file, b"")
        self.write_config(config)  # last: where it is, there is a run

    def require_same(self, experiment: Experiment) -> None:
        """Refuse another model, data set or split than those the run was begun with."""
        if self.fingerprint_file.exists():
            stored = json.loads(self.fingerprint_file.read_text(encoding="utf-8"))
            now = json.loads(json.dumps(fingerprint.facts(experiment)))
            fingerprint.require_same(stored, now, self.path)

    def require_same_options(self, config: RunConfig) -> None:
        """Refuse other options than those the run was begun with, where they decide its numbers."""
        then, now = (each.flat(deciding=True) for each in (self.config(), config))
        for name in sorted({*then, *now} - {"rounds", "fingerprint", "task", "model"}):
            require(
                then.get(name) == now.get(name),
                f"{self.path} holds a run with {name.removeprefix('set.')} {then.get(name)}, and this one has "
                f"{now.get(name)}: name another folder, or remove that one.",
            )

    def config(
        self,
        rounds: int | None = None,
        workers: int | str | None = None,
        engine: str | None = None,
        address: str | None = None,
    ) -> RunConfig:
        """What the run was started with, but for what is given here."""
        require(
            self.config_file.is_file(),
            f"there is no run in {self.path}: name the folder of one, in which config.yaml is.",
        )
        given = {"rounds": rounds, "workers": workers, "engine": engine, "address": address}
        return configure(read_config(self.config_file), {k: value for k, value in given.items() if value is not None})

    def write_config(self, config: RunConfig) -> None:
        with self._writing():
            replace_durably(self.config_file, config.to_yaml().encode())

    def metrics(self) -> list[Record]:
        """The records so far, up to the first line that is not whole, such as a last one that a crash cut short."""
        content = self.metrics_file.read_bytes() if self.metrics_file.exists() else b""
        records: list[Record] = []
        for line in content.splitlines(keepends=True):
            record = _record(line)
            if record is None or record.get("round") != len(records) + 1:
                break
            records.append(record)
        return records

    def rounds_done(self) -> int:
        """How many records there are, at little cost."""
        return self.metrics_file.read_bytes().count(b"\n") if self.metrics_file.exists() else 0

    def rewind(self, rounds: int) -> list[Record]:
        """The first ``rounds`` records; what comes after them (rounds that are played again, half a line) is removed."""
        kept = self.metrics()[:rounds]
        content = "".join(_line(record) for record in kept).encode()
        with self._writing():
            if not self.metrics_file.exists() or content != self.metrics_file.read_bytes():
                replace_durably(self.metrics_file, content)
        return kept

    @contextmanager
    def appending(self) -> Iterator[Callable[[Record, bool], None]]:
        """A function that adds one record to the metrics, or writes the last one ``again``; a crash of this process after it
        returns does not lose it."""
        with self.metrics_file.open("ab", buffering=0) as file:
            start = file.tell()

            def append(record: Record, again: bool = False) -> None:
                nonlocal start
                line = memoryview(_line(record).encode())
                with self._writing():
                    if again:
                        file.truncate(start)
                    else:
                        start = file.seek(0, os.SEEK_END)
                    while line:  # a disk that fills up takes part of a line before it takes none
                        line = line[file.write(line) :]

            yield append

    def save_checkpoint(self, federation: Federation) -> None:
        """The state after the federation's last round, once the records up to it are on the disk to stay."""
        with self._writing(), self.metrics_file.open("rb") as file:
            os.fsync(file.fileno())
        checkpoint.save(federation, self.checkpoints)

    def summary(self) -> RunSummary:
        return RunSummary(**json.loads(self.summary_file.read_text(encoding="utf-8")))

    def write_summary(self, summary: RunSummary) -> None:
        with self._writing():
            write_json(self.summary_file, summary.to_dict())

    def ended(self, config: RunConfig) -> RunSummary | None:
        """What the run came to, where nothing of ``config`` is left to play; None where it can go on."""
        if not self.summary_file.exists():
            return None
        summary = self.summary()
        played = summary.rounds >= config.rounds or summary.stopped is not None
        over = summary.status == "diverged" or (summary.status == "finished" and played)
        return summary if over else None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FedvraError(
                f"{self.path} cannot be written to ({error.strerror}): free some space, "
                f"then `fedvra resume {self.path}` goes on."
            ) from error


def _last(metrics: list[Record], name: str) -> float | None:
    """The value in the last record that has one."""
    return next((value for m in reversed(metrics) if (value := figure(m, name)) is not None), None)


def write_json(path: Path, content: Any) -> None:
    replace_durably(path, (json.dumps(finite(content), indent=2, allow_nan=False) + "\n").encode())


def _line(record: Record) -> str:
    return json.dumps(finite(record), allow_nan=False) + "\n"


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
