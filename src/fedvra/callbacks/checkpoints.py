"""The state of a run, saved every so many rounds and when it ends."""

from __future__ import annotations

from typing import ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.runs.files import Record, RunFolder


class Checkpoints(Callback):
    """Every ``every`` rounds (0: never) and after the last for now: `fedvra resume` starts from the newest."""

    afterwards: ClassVar[bool] = True

    def __init__(self, folder: RunFolder, every: int) -> None:
        self.folder, self.every = folder, every

    def on_round(self, run: Run, record: Record) -> None:
        if run.over or (self.every and run.round % self.every == 0):
            self.folder.save_checkpoint(run.federation)
