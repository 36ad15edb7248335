"""Trackers: what they hold, read back with their own packages, is what the run recorded, once per round, also after a stop."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedvra.callbacks.trackers import TRACKERS, Notes
from fedvra.cli import main
from fedvra.core.errors import UsageError
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder
from fedvra.runs.history import numbers
from fedvra.runs.options import RunConfig
from fedvra.studies.execution import execute, resume

SMALL = {"task": "digits", "rounds": 5, "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}
FEDVRA = {"algorithm": "fedvra", "set": {"gamma": 0.1, "a": 10, "d": 10}}
Series = dict[str, dict[int, list[float]]]
"""By name, by round, every value the tracker holds: two where a round was logged twice."""

# MLflow's tables use a loader that SQLAlchemy 2.1 deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def tensorboard_series(folder: Path) -> Series:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    series: Series = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            series.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return series


def wandb_records(folder: Path) -> list[Any]:
    """Every record of every offline folder, oldest first, by wandb's own messages."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    return [messages.Record.FromString(data) for file in files for data in log_records(file.read_bytes())]


def log_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log, in which wandb keeps its records: blocks of 32 KiB, in them chunks of checksum, length, kind, data."""
    assert content.startswith(b":W&B")
    position, record = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no room for another header: the rest of the block is padding
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_series(folder: Path) -> Series:
    series: Series = {}
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name in set(items) - {"_step", "_runtime", "_timestamp"}:
                series.setdefault(name, {}).setdefault(record.history.step.num, []).append(items[name])
    return series


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    tracking = pytest.importorskip("mlflow.tracking")
    notes = json.loads((folder / "trackers.json").read_text())["mlflow"]
    client = tracking.MlflowClient(tracking_uri=notes["store"])
    return client, client.get_run(notes["run"])


def mlflow_series(folder: Path) -> Series:
    client, run = mlflow_run(folder)
    series: Series = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            series.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return series


READERS: dict[str, Callable[[Path], Series]] = {
    "tensorboard": tensorboard_series,
    "wandb": wandb_series,
    "mlflow": mlflow_series,
}


def recorded(folder: Path) -> Series:
    series: Series = {}
    for record in RunFolder(folder).metrics():
        for name, value in numbers(record).items():
            series.setdefault(name, {})[record["round"]] = [value]
    return series


def stopped_and_resumed(config: RunConfig, folder: Path) -> None:
    """A run that crashes after its fourth round, with its last checkpoint after the second; then the rest of it."""

    def crash(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise RuntimeError("the machine went away")

    with pytest.raises(RuntimeError, match="went away"):
        execute(config, folder, [crash])
    assert resume(folder).status == "finished"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with all three, crashed and resumed."""
    for package in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[test]'")
    out = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("WANDB_MODE", raising=False)
        config = configure({**SMALL, **FEDVRA, "checkpoint_every": 2, "track": "tensorboard,wandb,mlflow"})
        stopped_and_resumed(config, out / "run")
    return out / "run"


def test_every_tracker_is_read_back_here() -> None:
    assert set(TRACKERS.names()) == set(READERS)


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_it_holds_every_number_of_every_round_once(tracked: Path, tracker: str) -> None:
    held, want = READERS[tracker](tracked), recorded(tracked)
    assert len(want["test_accuracy"]) == SMALL["rounds"]
    for name in (
        "test_accuracy",
        "test_loss",
        "train_loss",
        "bytes_up",
        "local_steps",
    ):  # seconds differ: it was replayed
        assert set(held[name]) == set(want[name]), name
        for round, values in want[name].items():
            assert held[name][round] == pytest.approx(values, rel=1e-6), (name, round)
    assert set(want) <= set(held)


def test_weights_and_biases_holds_both_parts_under_one_id(tracked: Path) -> None:
    held, want = wandb_series(tracked), recorded(tracked)
    for name in ("test_accuracy", "test_loss", "bytes_up"):
        for round, (value,) in want[name].items():
            # Rounds 3 and 4 were played before the crash and again after it, to the same numbers.
            assert held[name][round] == [value] * (2 if round in (3, 4) else 1), (name, round)
    runs = [record.run for record in wandb_records(tracked) if record.WhichOneof("record_type") == "run"]
    parts = list((tracked / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    assert len({run.run_id for run in runs}) == 1
    assert runs[0].display_name == "FedVRA on digits, seed 0"


def test_mlflow_knows_what_was_run_and_how_it_ended(tracked: Path) -> None:
    _, run = mlflow_run(tracked)
    assert run.info.status == "FINISHED"
    assert run.data.params["task"] == "digits"
    assert run.data.params["set.gamma"] == "0.1"
    assert run.data.metrics["final_accuracy"] == RunFolder(tracked).summary().final_accuracy
    assert (tracked.parent / "mlflow.db").exists()


def test_tensorboard_knows_what_was_run(tracked: Path) -> None:
    held = tensorboard_series(tracked)
    summary = RunFolder(tracked).summary()
    assert [value for values in held["outcome/final_accuracy"].values() for value in values][-1] == pytest.approx(
        summary.final_accuracy
    )


def test_mlflow_into_a_file_store_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    execute(configure({**SMALL, "rounds": 2, "track": ["mlflow"]}), tmp_path / "run")
    held, want = mlflow_series(tmp_path / "run"), recorded(tmp_path / "run")
    assert held["test_accuracy"] == want["test_accuracy"]
    assert (tmp_path / "mlruns").is_dir()


def test_a_run_that_diverges_is_a_failure_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    wild = configure(
        {**SMALL, "rounds": 40, "model": "mlp", "set": {"gamma": 0.1, "a": 5000, "d": 10}, "track": "mlflow"}
    )
    assert execute(wild, tmp_path / "run").status == "diverged"
    assert mlflow_run(tmp_path / "run")[1].info.status == "FAILED"


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_said_before_anything_is_written(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvra.callbacks.trackers.base.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"--track {tracker} needs .*pip install 'fedvra\[{tracker}\]'"):
        execute(configure({**SMALL, "track": tracker}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    words = ["run", "digits", "--rounds", "1", "--workers", "1", "--model", "linear", "--json"]
    words += ["--track", "tensorboard", "--track", "tensorboard", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 0, capsys.readouterr().err
    assert RunFolder(tmp_path / "run").config().track == ("tensorboard",)
    assert set(tensorboard_series(tmp_path / "run")["test_loss"]) == {1}


@pytest.mark.parametrize(
    ("said", "message"), [("tensorbord", "did you mean 'tensorboard'"), (5, "names of trackers"), ([3], "names of")]
)
def test_trackers_refused(said: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configure({**SMALL, "track": said})


@pytest.mark.parametrize("moment", ["record", "close"])
def test_a_tracker_that_fails_does_not_stop_the_run(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    calls: list[Any] = []

    def fail(*args: Any) -> None:
        calls.append(args)
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(TRACKERS.get("tensorboard"), moment, fail)
    with pytest.warns(UserWarning, match="failed and is left out from here on: ConnectionError: the server is gone"):
        summary = execute(configure(SMALL, {"track": "tensorboard"}), tmp_path / "run")
    assert (summary.status, summary.rounds, len(calls)) == ("finished", 5, 1)
    assert len(RunFolder(tmp_path / "run").metrics()) == 5


def test_no_tracker_leaves_no_trace(tmp_path: Path) -> None:
    execute(configure({**SMALL, "rounds": 1}), tmp_path / "run")
    assert not {"tensorboard", "wandb", "trackers.json"} & {file.name for file in (tmp_path / "run").iterdir()}
    assert "track" not in RunFolder(tmp_path / "run").config().to_dict()


def test_notes_are_kept_by_tracker(tmp_path: Path) -> None:
    run = Notes(tmp_path)
    assert run.remembered("wandb") == {}
    run.remember("wandb", id="1")
    run.remember("mlflow", run="2")
    assert run.remembered("wandb") == {"id": "1"}
    assert run.remembered("mlflow") == {"run": "2"}
