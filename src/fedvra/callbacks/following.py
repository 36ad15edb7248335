"""How a run tells those who look on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType

from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.function import as_callbacks
from fedvra.core.errors import DivergedError, FedvraError, StopRun
from fedvra.core.threads import one_thread
from fedvra.runs.files import Record, RunSummary
from fedvra.runs.history import dual_drift


class Following:
    """The callbacks of one run: a context that begins and ends with them.

    with Following(run, callbacks) as following:
        while not run.over:
            following.round(federation.round)
    """

    def __init__(self, run: Run, callbacks: Iterable[Callback | Callable[[Record], object]]) -> None:
        self.run = run
        self.callbacks = sorted(as_callbacks(callbacks), key=lambda callback: callback.afterwards)  # stable
        self._started: list[Callback] = []

    def __enter__(self) -> Following:
        run = self.run
        if run.records:
            run.stopped = run.records[-1].get("stopped")  # it was resumed at its end
        try:
            for callback in self.callbacks:
                if run.experiment is not None:
                    callback.check(run.experiment)
            for callback in self.callbacks:
                self._ask(callback.on_start)
                self._started.append(callback)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def round(self, play: Callable[[], Record]) -> Record:
        """Play a round and have everybody look at it."""
        started, run = time.perf_counter(), self.run
        with one_thread():
            for callback in self.callbacks:
                self._ask(callback.on_round_start)
        record = play()
        with one_thread():
            for callback in (each for each in self.callbacks if not each.afterwards):
                self._tell(callback, record)
        if "seconds" in record or self.callbacks:  # a federation that nobody looks at does not tell the time
            record["seconds"] = time.perf_counter() - started
        if not (run.records and run.records[-1] is record):  # a federation keeps its own
            run.records.append(record)
        for callback in (each for each in self.callbacks if each.afterwards):
            run.leaving = run.interrupted()
            self._tell(callback, record)
        if not any(each.afterwards for each in self.callbacks):
            run.leaving = run.interrupted()
        return record

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self.run
        if error is None and not (run.leaving and run.round < run.rounds and run.stopped is None):
            run.status = "finished"
        elif isinstance(error, DivergedError):
            run.status, run.message = "diverged", str(error)
        elif error is None or isinstance(error, KeyboardInterrupt):
            run.status, run.message = "interrupted", f"stopped by the user after round {len(run.records)}."
        else:
            run.status = "failed"
            run.message = str(error) if isinstance(error, FedvraError) else f"{type(error).__name__}: {error}"
        drift = self._drift() if error is None and run.folder is not None else None
        run.summary = RunSummary.of(run, run.records, run.status, run.message, drift, run.label, run.metric_names())
        with ExitStack() as ending:  # all of them, even where one fails
            for callback in reversed(self._started):
                ending.callback(callback.on_end, run)

    def _ask(self, hook: Callable[[Run], None]) -> None:
        try:
            hook(self.run)
        except StopRun as stop:
            self.run.stopped = self.run.stopped or str(stop)

    def _tell(self, callback: Callback, record: Record) -> None:
        try:
            callback.on_round(self.run, record)
        except StopRun as stop:
            self.run.stopped = self.run.stopped or str(stop)
        if self.run.stopped is not None and "stopped" not in record:
            record["stopped"] = self.run.stopped
            for each in self.callbacks:
                each.on_stop(self.run, record)

    def _drift(self) -> float | None:
        f = self.run.simulator
        return None if f is None else dual_drift(f.state.lam, f.clients.duals.items(), f.omega)
