"""TensorBoard: event files in the run's folder; ``tensorboard --logdir runs`` shows all runs below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedvra.runs.trackers.base import TRACKERS, Tracked, Tracker, outcome

if TYPE_CHECKING:
    from fedvra.runs.files import RunSummary


class TensorBoard(Tracker):
    """A run that goes on writes a further event file, at whose start rounds that are played again are purged."""

    extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config = run.config
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.done + 1 if run.done else None)
        if not run.done:
            self.writer.add_text("config", f"```yaml\n{run.config.to_yaml()}```")

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)

    def close(self, summary: RunSummary) -> None:
        options = {name: value if isinstance(value, int | float) else str(value) for name, value in self._options()}
        figures = {f"outcome/{name}": value for name, value in outcome(summary).items()}
        self.writer.add_hparams(options, figures, run_name=".")  # the tab HPARAMS; "." is this run, not one below it
        self.writer.close()

    def _options(self) -> list[tuple[str, object]]:
        return list(self.config.flat().items())


TRACKERS.add("tensorboard", TensorBoard)
