"""Runs that there are already: found by what determines their numbers, wherever they lie.

A run is known by the SHA-256 of its resolved options, less those that change no number: how many rounds, how many
processes it had, where its files are. So a run of 500 rounds serves a request for 100, and one that somebody made with
``fedvra run`` serves as well as one made here. The code is not part of the hash: after a change that moves numbers, use a
new folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.errors import UsageError, require
from fedvra.runs.config import BEFORE_DEPLOY, configure
from fedvra.runs.files import Record, RunFolder, Status
from fedvra.runs.options import RunConfig
from fedvra.tasks.own import short_name

DEPTH = 3
"""How far below a folder that is named runs are looked for."""


@dataclass(frozen=True)
class Stored:
    """A run as it was found: in its folder or in a file of results."""

    config: Mapping[str, Any]
    status: Status
    metrics: list[Record]
    seconds: float
    """It took altogether."""
    where: Path
    message: str | None = None
    """Why it did not finish."""

    @property
    def rounds(self) -> int:
        return len(self.metrics)

    def serves(self, rounds: int) -> bool:
        """Whether its first ``rounds`` rounds are all that the run of so many would have come to."""
        return self.rounds >= rounds or self.status == "diverged"

    def up_to(self, rounds: int) -> Stored:
        """The run as it would be had it been asked for so many rounds."""
        if self.rounds <= rounds:
            return self
        share = rounds / self.rounds
        return Stored(self.config, "finished", self.metrics[:rounds], self.seconds * share, self.where)


def fingerprint(config: RunConfig) -> str:
    """
    >>> short, long = ({"task": "digits", "rounds": rounds, "workers": rounds} for rounds in (1, 2))
    >>> fingerprint(configure(short)) == fingerprint(configure(long))
    True
    >>> fingerprint(configure(short)) == fingerprint(configure(short, {"seed": 1}))
    False
    """
    decisive = {name: _plain(value) for name, value in config.flat(deciding=True).items() if name != "rounds"}
    if decisive.get("deploy") == "x0":  # so that runs keep the names they had before there was a choice
        del decisive["deploy"]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def folder_name(config: RunConfig) -> str:
    """Of a run that is made here."""
    return f"{short_name(config.task)}-{config.algorithm}-seed{config.seed}-{fingerprint(config)}"


class Cache:
    """All runs in and below some folders, by fingerprint."""

    def __init__(self, places: Iterable[str | Path]) -> None:
        self._folders: dict[str, list[RunFolder]] = {}
        self._stored: dict[str, list[Stored]] = {}
        for place in map(Path, places):
            for folder in _run_folders(place):
                config = _config(folder)
                if config is not None:
                    self._folders.setdefault(fingerprint(config), []).append(folder)
            for key, stored in _in_results(place):
                self._stored.setdefault(key, []).append(stored)

    def find(self, config: RunConfig) -> Stored | None:
        """A run that ``config`` asks for, cut to its number of rounds; None where there is none that is long enough."""
        serving = [run for run in self._all(config) if run.serves(config.rounds)]
        return serving[0].up_to(config.rounds) if serving else None

    def best(self, config: RunConfig) -> Stored | None:
        """Like :meth:`find`, but where there is none the longest of those that finished."""
        ended = [run for run in self._all(config) if run.serves(config.rounds) or run.status == "finished"]
        longest = max(ended, key=lambda run: run.rounds, default=None)
        return None if longest is None else longest.up_to(config.rounds)

    def every(self) -> Iterator[Stored]:
        """All runs, for those who want to know how fast they were."""
        for key in self._folders:
            yield from filter(None, map(_read, self._folders[key]))
        for found in self._stored.values():
            yield from found

    def _all(self, config: RunConfig) -> list[Stored]:
        key = fingerprint(config)
        runs = [_read(folder) for folder in self._folders.get(key, [])]
        return [run for run in runs if run is not None] + self._stored.get(key, [])


def results_file(content: Any) -> bool:
    """Whether a JSON file's content is one that ``fedvra.reproduce.results`` wrote."""
    return (
        isinstance(content, dict) and isinstance(content.get("recipe"), str) and isinstance(content.get("runs"), list)
    )


def _run_folders(place: Path) -> Iterator[RunFolder]:
    """Every folder in or below ``place`` with a config.yaml, in a fixed order."""
    for depth in range(DEPTH + 1):
        for path in sorted(place.glob("/".join(["*"] * depth + ["config.yaml"]))):
            yield RunFolder(path.parent)


def _in_results(place: Path) -> Iterator[tuple[str, Stored]]:
    for path in sorted(place.glob("*.json")) if place.is_dir() else ():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # somebody else's file
        if results_file(content):
            for run in content["runs"]:
                yield _stored_in_results(path, run)


def _stored_in_results(path: Path, run: Mapping[str, Any]) -> tuple[str, Stored]:
    try:
        series: dict[str, list[Any]] = run["metrics"]
        lengths = {len(values) for values in series.values()}
        require(
            lengths == {run["rounds"]}, f"{path}: the metrics of a run are of unequal length; write the file again."
        )
        metrics = [
            {"round": r + 1, **{name: values[r] for name, values in series.items()}} for r in range(run["rounds"])
        ]
        config = configure(BEFORE_DEPLOY, run["config"])
        return fingerprint(config), Stored(config.to_dict(), run["status"], metrics, run["seconds"], path)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} holds a run that cannot be read ({error}): write the file again.") from None


def _config(folder: RunFolder) -> RunConfig | None:
    try:
        return folder.config()
    except UsageError:  # an option or algorithm that this version does not know: not a run we could use
        return None


def _read(folder: RunFolder) -> Stored | None:
    """What is in the folder now; a run in progress counts with the rounds it has on record."""
    config, metrics = folder.config(), folder.metrics()
    summary = folder.summary() if folder.summary_file.exists() else None
    status: Status = "interrupted" if summary is None else summary.status
    if not metrics and status != "diverged":
        return None
    seconds = sum(record["seconds"] for record in metrics)
    return Stored(config.to_dict(), status, metrics, seconds, folder.path, None if summary is None else summary.message)


def _plain(value: Any) -> Any:
    """Numbers as floats, so that 1 and 1.0 are the same setting."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
