"""A run's records and summary, into its folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.runs.files import Record, RunFolder


class Records(Callback):
    """A line of metrics.jsonl per round, there when the round is over, and summary.json at the end."""

    afterwards: ClassVar[bool] = True
    _forgets: ClassVar[tuple[str, ...]] = ("_open", "_append", "_written")

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_start(self, run: Run) -> None:
        self.folder.summary_file.unlink(missing_ok=True)  # of an earlier stop: from here on it would be out of date
        self._open, self._written = ExitStack(), 0
        self._append: Callable[[Record, bool], None] = self._open.enter_context(self.folder.appending())

    def on_round(self, run: Run, record: Record) -> None:
        self._append(record, False)
        self._written = record["round"]

    def on_stop(self, run: Run, record: Record) -> None:
        if self._written == record["round"]:  # else its turn is still to come
            self._append(record, True)

    def on_end(self, run: Run) -> None:
        self._open.close()
        if run.summary is not None:
            self.folder.write_summary(run.summary)
