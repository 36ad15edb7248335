"""Run folders with known content, for tests of what is made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder, RunSummary

FEDVRA = {"set": {"gamma": 0.1, "a": 10, "d": 10}}
OPTIONS = {"task": "digits", "clients": 20, "cohort": 5, "epochs": 1, "model": "linear", "targets": "50,90"}


def store(
    folder: Path,
    accuracies: Sequence[float],
    status: str | None = "finished",
    diagnostics: Mapping[int, Mapping[str, float]] | None = None,
    vectors: tuple[int, int] = (1, 1),
    losses: Sequence[float] | None = None,
    message: str | None = None,
    **options: Any,
) -> Path:
    """A run of one round per accuracy, as ``fedvra run`` leaves it.

    Args:
        status: None leaves the summary out, as while a run is going on.
        diagnostics: by round.
        losses: on the test data; by default they follow from the accuracies.
        vectors: of 1000 bytes, sent here and by the published protocol, up and as many down.
    """
    config = configure(OPTIONS, {"algorithm": "fedvra", **FEDVRA}, {"rounds": max(1, len(accuracies))}, options)
    files = RunFolder(folder)
    folder.mkdir(parents=True)
    files.create(config)
    records = []
    for r, accuracy in enumerate(accuracies, start=1):
        here, original = (1000 * number for number in vectors)
        record: dict[str, Any] = {
            "round": r,
            "test_accuracy": accuracy,
            "test_loss": 2.0 * (1.01 - accuracy) if losses is None else losses[r - 1],
            "train_loss": 1.5 * (1.01 - accuracy),
            "seconds": 0.5,
            "seconds_training": 0.4,
            "bytes_up": here,
            "bytes_down": here,
            "bytes_up_original": original,
            "bytes_down_original": original,
            "local_steps": 10,
            "cohort": [0, 1, 2, 3, 4],
        }
        if diagnostics and r in diagnostics:
            record["diagnostics"] = dict(diagnostics[r])
        records.append(record)
    files.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    if status is not None:
        files.write_summary(RunSummary.of(config, records, status, message, None))  # type: ignore[arg-type]
    return folder


def add(folder: Path, **figures: Any) -> None:
    """More figures in every record of a run."""
    file = RunFolder(folder).metrics_file
    lines = [json.loads(line) | figures for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def comparison(out: Path) -> Path:
    """FedVRA over two seeds with diagnostics, SCAFFOLD over two of which one is slower, FedAvg once, which misses 90%."""
    measured = {r: {"xi": 1.0 / r, "grad_norm2": 0.1 / r} for r in (2, 4)}
    store(out / "fedvra" / "seed-0", [0.3, 0.6, 0.92, 0.95], diagnostics=measured)
    store(out / "fedvra" / "seed-1", [0.2, 0.5, 0.88, 0.93], seed=1, diagnostics=measured)
    store(out / "scaffold" / "seed-0", [0.2, 0.4, 0.6, 0.91], algorithm="scaffold", vectors=(1, 2))
    store(out / "scaffold" / "seed-1", [0.1, 0.3, 0.5, 0.8], algorithm="scaffold", seed=1, vectors=(1, 2))
    store(out / "fedavg" / "seed-0", [0.1, 0.3, 0.45, 0.55], algorithm="fedavg")
    return out
