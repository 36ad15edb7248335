"""TensorBoard: event files in the run's folder; ``tensorboard --logdir runs`` shows all runs below it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from fedvra.callbacks.base import Run
from fedvra.callbacks.trackers.base import TRACKERS, Notes, Tracker, outcome
from fedvra.runs.files import RunSummary


class TensorBoard(Tracker):
    """A resumed run writes a further event file, at whose start rounds that are run again are purged."""

    extra = "tensorboard"
    packages = ("tensorboard",)

    def open(self, run: Run, folder: Path, notes: Notes) -> None:
        from torch.utils.tensorboard import SummaryWriter

        done = len(run.records)
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        if not done:
            written = yaml.safe_dump(dict(run.options), sort_keys=False, default_flow_style=None, width=100)
            self.writer.add_text("config", f"```yaml\n{written}```")

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)

    def close(self, run: Run, summary: RunSummary) -> None:
        options = {name: value if isinstance(value, int | float) else str(value) for name, value in run.options.items()}
        figures = {f"outcome/{name}": value for name, value in outcome(summary).items()}
        self.writer.add_hparams(options, figures, run_name=".")  # the tab HPARAMS; "." is this run, not one below it
        self.writer.close()


TRACKERS.add("tensorboard", TensorBoard)
