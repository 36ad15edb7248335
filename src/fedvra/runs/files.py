"""The files of a run: everything it needs to be run again or resumed, one line per round, and its results.

    config.yaml     every option, resolved; itself a valid ``--config``
    metrics.jsonl   one object per round, written as the round ends
    checkpoint/     the state after some round, from which ``fedvra resume`` starts; the last two are kept
    summary.json    final and best accuracy, rounds to each target, times; how the run ended
    fingerprint.json  by what model and data are known again; beside it provenance.json: command, commit, date, machine
    partition.png   which client has which data

Reports are made from these files alone, so any finished run can be looked at again. A file ``.lock`` keeps two processes from
working in one folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fedvra.core.errors import FedvraError, require
from fedvra.core.files import replace_durably, require_run
from fedvra.engines import checkpoint, fingerprint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.runs.config import BEFORE_DEPLOY, configure, from_now_on, read_config
from fedvra.runs.options import RunConfig
from fedvra.runs.provenance import Provenance
from fedvra.runs.summary import Record as Record
from fedvra.runs.summary import RunSummary as RunSummary
from fedvra.runs.summary import Status as Status
from fedvra.state.folders import locked, require_unused

PLAN = "plan.json"
"""The runs of a comparison, written before the first of them: what ``fedvra resume`` needs."""


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
        first = [self.fingerprint_file.name, self.provenance_file.name]  # see `create`
        if self.metrics_file.exists() and not self.metrics_file.stat().st_size:
            first.append(self.metrics_file.name)
        require_unused(self.path, () if self.config_file.exists() else first)

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
        require_run(self.path, self.config_file.is_file())
        return configure(BEFORE_DEPLOY, read_config(self.config_file), from_now_on(rounds, workers, engine, address))

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
        """The first ``rounds`` records; what comes after them (rounds that are run again, half a line) is removed."""
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
        """The result of the run, where nothing of ``config`` is left to run; None where it can be resumed."""
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
                f"then `fedvra resume {self.path}`."
            ) from error


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
