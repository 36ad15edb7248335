"""MLflow: into the store MLFLOW_TRACKING_URI names, else ``mlflow.db`` in the working folder, where ``mlflow ui`` looks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from fedvra.callbacks.base import Run
from fedvra.callbacks.trackers.base import TRACKERS, Notes, Tracker, outcome
from fedvra.runs.files import RunSummary, Status

STATUS: dict[Status, str] = {
    "finished": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class MLflow(Tracker):
    """One experiment per task. A resumed run is the same MLflow run; rounds that it has already are not logged twice.

    The default store is an SQLite file, as it is MLflow's own: a folder of text files (``file:mlruns``) is in maintenance
    mode, and MLflow opens one only where MLFLOW_ALLOW_FILE_STORE=true says so.
    """

    extra = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")

    def open(self, run: Run, folder: Path, notes: Notes) -> None:
        from mlflow.tracking import MlflowClient

        for name in (
            "mlflow.store.db.utils",
            "alembic",
        ):  # a new store is no news, and lines would break the live display
            logging.getLogger(name).setLevel(logging.WARNING)
        known = notes.remembered("mlflow")
        store = (
            known.get("store") or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').absolute()}"
        )
        self.client = MlflowClient(tracking_uri=store)
        if known:
            self.id = known["run"]
            self.client.update_run(self.id, status="RUNNING")
        else:
            made = self.client.create_run(self._experiment(run.task), run_name=run.name)
            self.id = made.info.run_id
            notes.remember("mlflow", store=store, run=self.id)
            for name, value in run.options.items():
                self.client.log_param(self.id, name, value)
        logged = self.client.get_metric_history(self.id, "seconds") if known else []
        self.last = max((metric.step for metric in logged), default=0)

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if round > self.last:
            now = int(1000 * time.time())
            self.client.log_batch(self.id, [Metric(name, value, now, round) for name, value in numbers.items()])

    def close(self, run: Run, summary: RunSummary) -> None:
        for name, value in outcome(summary).items():
            self.client.log_metric(self.id, name, value, step=summary.rounds)
        self.client.set_terminated(self.id, STATUS[summary.status])

    def _experiment(self, task: str) -> str:
        name = f"fedvra {task}"
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self.client.create_experiment(name))


TRACKERS.add("mlflow", MLflow)
