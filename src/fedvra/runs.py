"""A run on disk: everything it needs to be run again, one line per round, and what it came to.

    config.yaml     every option, resolved; itself a valid ``--config``
    metrics.jsonl   one object per round, written as the round ends
    summary.json    final and best accuracy, rounds to each target, times; how the run ended
    partition.png   who holds what

Reports are made from these files alone, so any finished run can be looked at again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedvra.algorithms import REGISTRY
from fedvra.config import RunConfig, build, configure, read_config
from fedvra.data.dataset import FederatedData
from fedvra.data.picture import picture
from fedvra.data.sources.files import write_atomically
from fedvra.engines.local import one_thread
from fedvra.errors import DivergedError, FedvraError, UsageError, require
from fedvra.federation import Federation
from fedvra.history import rounds_to, summarise

Record: TypeAlias = dict[str, Any]
Status = Literal["finished", "diverged", "interrupted", "failed"]


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
    peak_rss_mb: float

    @classmethod
    def of(cls, config: RunConfig, metrics: list[Record], status: Status, message: str | None) -> RunSummary:
        figures = {
            **summarise(metrics),
            "rounds_to": rounds_to(metrics, config.targets),
            "peak_rss_mb": round(peak_rss_mb(), 1),
        }
        label = REGISTRY.get(config.algorithm).label
        return cls(config.task, config.algorithm, label, config.seed, status, message, **figures)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.partition_file = self.path / "partition.png"

    def require_unused(self) -> None:
        """Refuse a folder that holds anything or cannot be written to. Writes nothing itself."""
        require_unused(self.path)

    def create(self, config: RunConfig) -> None:
        make_folder(self.path)
        write_atomically(self.config_file, config.to_yaml().encode())
        write_atomically(self.metrics_file, b"")

    def config(self) -> RunConfig:
        return configure(read_config(self.config_file))

    def metrics(self) -> list[Record]:
        """The records so far. A last line that a crash cut short is left out."""
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind(self, rounds: int) -> list[Record]:
        """The first ``rounds`` records; what comes after them (rounds that are played again, half a line) is removed."""
        kept = self.metrics()[:rounds]
        content = "".join(_line(record) for record in kept)
        if content != self.metrics_file.read_text(encoding="utf-8"):
            write_atomically(self.metrics_file, content.encode())
        return kept

    @contextmanager
    def appending(self) -> Iterator[Callable[[Record], None]]:
        """A function that adds one record to the metrics, on disk before it returns."""
        with self.metrics_file.open("a", encoding="utf-8") as file:

            def append(record: Record) -> None:
                file.write(_line(record))
                file.flush()

            yield append

    def summary(self) -> RunSummary:
        return RunSummary(**json.loads(self.summary_file.read_text(encoding="utf-8")))

    def write_summary(self, summary: RunSummary) -> None:
        write_json(self.summary_file, summary.to_dict())


def execute(
    config: RunConfig, out: str | Path, on_record: Callable[[Record], None] = lambda record: None
) -> RunSummary:
    """Run what ``config`` describes into the folder ``out``, which must not be in use; returns the summary it wrote there.

    Whatever is wrong with the options or the data is found out before anything is written. A run that diverges is a result,
    not an error: its summary says so.
    """
    folder = RunFolder(out)
    folder.require_unused()
    with one_thread(), closing(Federation(build(config), config.workers)) as federation:
        federation.preflight()
        folder.create(config)
        return play(federation, config, folder, on_record)


def check(config: RunConfig) -> None:
    """Raise what :func:`execute` would refuse, at little cost: nothing is run, and no fast path is prepared."""
    experiment = build(config)
    plain = replace(experiment, solver=replace(experiment.solver, path="eager"))
    with one_thread(), closing(Federation(plain, workers=1)) as federation:
        federation.preflight()


def play(
    federation: Federation, config: RunConfig, folder: RunFolder, on_record: Callable[[Record], None]
) -> RunSummary:
    """Play the rounds that are left, keeping the books; ends with a summary however it ends."""
    metrics = folder.rewind(federation.state.round)
    status: Status = "failed"
    message: str | None = None
    try:
        with folder.appending() as append:
            while federation.state.round < config.rounds:
                record = federation.round()
                append(record)
                metrics.append(record)
                on_record(record)
        status = "finished"
    except DivergedError as error:
        status, message = "diverged", str(error)
    except KeyboardInterrupt:
        status, message = "interrupted", f"stopped by the user after round {len(metrics)}."
        raise
    except Exception as error:
        message = str(error) if isinstance(error, FedvraError) else f"{type(error).__name__}: {error}"
        raise
    finally:
        summary = RunSummary.of(config, metrics, status, message)
        folder.write_summary(summary)
    data = federation.experiment.data
    if isinstance(data, FederatedData):  # last, since importing matplotlib would delay the first round
        picture(data, folder.partition_file)
    return summary


def require_unused(path: Path) -> None:
    """Refuse an output folder that holds anything or cannot be written to. Writes nothing itself."""
    try:
        require(not path.exists() or path.is_dir(), f"{path} is a file: name a folder to write to with --out.")
        require(
            not path.is_dir() or not any(path.iterdir()),
            f"the folder {path} is already in use: name another with --out, or remove it first.",
        )
    except OSError as error:
        raise _unwritable(path, error) from None
    ancestor = next(place for place in (path, *path.absolute().parents) if place.exists())
    require(
        ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK),
        f"{path} cannot be made because {ancestor} is not a folder one may write to: name another with --out.",
    )


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def next_free(path: Path) -> Path:
    """``path`` if nothing is there, else the first of path-2, path-3, ... where nothing is."""
    numbered = (path.with_name(f"{path.name}-{k}") for k in itertools.count(2))
    return next(place for place in itertools.chain([path], numbered) if not place.exists())


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(finite(content), indent=2, allow_nan=False) + "\n").encode())


def _line(record: Record) -> str:
    return json.dumps(finite(record), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value


def peak_rss_mb() -> float:
    """Most memory this process and its workers ever held, added up; pages they share count for each of them."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    try:
        return sum(_peak_kb(pid) for pid in pids if pid is not None) / 1024
    except OSError:  # no /proc: there are no workers either
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written to ({error.strerror}): name another folder with --out.")
