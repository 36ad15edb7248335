"""Weights & Biases, offline: files in the run's folder, which ``wandb sync`` uploads when and if one wants to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from fedvra.callbacks.base import Run
from fedvra.callbacks.trackers.base import TRACKERS, Notes, Tracker, outcome
from fedvra.runs.files import RunSummary


class WeightsAndBiases(Tracker):
    """Nothing is sent unless the environment says WANDB_MODE=online.

    A resumed run writes a further offline folder under the same id: both go to one run when they are synced, in order and
    the later ones appended.
    """

    extra = "wandb"
    packages = ("wandb",)

    def open(self, run: Run, folder: Path, notes: Notes) -> None:
        import wandb

        known = notes.remembered("wandb") or {"id": secrets.token_hex(4)}
        notes.remember("wandb", **known)
        # Only the numbers: no console output, source code, machine statistics or lists of packages.
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        self.run = wandb.init(
            project="fedvra",
            id=known["id"],
            name=run.name,
            config=dict(run.options),
            dir=str(folder),
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            resume="allow",
            settings=quiet,
        )

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=round)

    def close(self, run: Run, summary: RunSummary) -> None:
        self.run.summary.update({**outcome(summary), "status": summary.status})
        self.run.finish(exit_code=0 if summary.status == "finished" else 1)


TRACKERS.add("wandb", WeightsAndBiases)
