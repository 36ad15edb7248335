"""A run's folder: what is written, when, and what stays when a run does not come to its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedvra.core.errors import UsageError
from fedvra.runs.config import configure
from fedvra.runs.files import Record, RunFolder, RunSummary, finite
from fedvra.runs.history import rounds_to
from fedvra.runs.options import RunConfig
from fedvra.state.folders import next_free
from fedvra.studies.execution import execute

TIMES = ("seconds", "seconds_training")


def small(**options: Any) -> RunConfig:
    base = {"task": "digits", "rounds": 4, "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}
    return configure(base, options)


def untimed(metrics: list[Record]) -> list[Record]:
    return [{name: value for name, value in record.items() if name not in TIMES} for record in metrics]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "one")
    execute(small(), folder.path)
    return folder


def test_what_a_folder_holds(finished: RunFolder) -> None:
    files = {path.name for path in finished.path.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "partition.png"} <= files
    assert {"checkpoint", ".lock"} <= files
    assert not [name for name in files - {".lock"} if name.startswith(".")]
    assert finished.partition_file.read_bytes().startswith(b"\x89PNG")
    assert finished.config() == small()


def test_one_record_per_round(finished: RunFolder) -> None:
    metrics = finished.metrics()
    assert [record["round"] for record in metrics] == [1, 2, 3, 4]
    contract = {"test_accuracy", "test_loss", "train_loss", "seconds", "bytes_up", "bytes_down", "cohort"}
    assert all(contract <= record.keys() for record in metrics)
    assert all(len(record["cohort"]) == 5 for record in metrics)


def test_the_summary_follows_from_the_records(finished: RunFolder) -> None:
    summary, metrics = finished.summary(), finished.metrics()
    curve = [record["model_accuracy"] for record in metrics]
    assert (summary.algorithm, summary.seed, summary.status, summary.rounds) == ("fedvra", 0, "finished", 4)
    assert (summary.final_accuracy, summary.best_accuracy) == (curve[-1], max(curve))
    assert summary.rounds_to == rounds_to(metrics, small().targets)
    assert summary.seconds_per_round == pytest.approx(sum(record["seconds"] for record in metrics) / 4)
    assert summary.bytes_up == sum(record["bytes_up"] for record in metrics)
    assert summary.steps_per_second is not None
    assert summary.steps_per_second > 0
    assert 50 < summary.peak_rss_mb < 20_000


def test_config_yaml_runs_again_to_the_same_numbers(finished: RunFolder, tmp_path: Path) -> None:
    execute(finished.config(), tmp_path / "again")
    assert untimed(RunFolder(tmp_path / "again").metrics()) == untimed(finished.metrics())


def test_workers_do_not_change_the_numbers(finished: RunFolder, tmp_path: Path) -> None:
    execute(small(workers=2), tmp_path / "two")
    assert untimed(RunFolder(tmp_path / "two").metrics()) == untimed(finished.metrics())


def test_another_seed_changes_them(finished: RunFolder, tmp_path: Path) -> None:
    execute(small(seed=1), tmp_path / "seed")
    assert untimed(RunFolder(tmp_path / "seed").metrics()) != untimed(finished.metrics())


def test_every_round_is_on_disk_before_the_next(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    lines: list[int] = []
    execute(small(), folder.path, [lambda record: lines.append(len(folder.metrics()))])
    assert lines == [1, 2, 3, 4]


def test_rounds_that_are_not_evaluated(tmp_path: Path) -> None:
    summary = execute(small(eval_every=3), tmp_path / "run")
    evaluated = [record["test_accuracy"] is not None for record in RunFolder(tmp_path / "run").metrics()]
    assert evaluated == [False, False, True, False]
    assert summary.final_accuracy is not None
    assert execute(small(eval_every=0), tmp_path / "never").final_accuracy is None


def test_no_rounds_at_all(tmp_path: Path) -> None:
    summary = execute(small(rounds=0), tmp_path / "run")
    assert (summary.status, summary.rounds, summary.final_accuracy) == ("finished", 0, None)
    assert RunFolder(tmp_path / "run").summary() == summary


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_divergence_ends_the_run_and_leaves_what_it_wrote(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    summary = execute(small(rounds=60, set={"gamma": 0.1, "a": 1000}, model="mlp"), folder.path)
    assert summary.status == "diverged"
    assert summary.message is not None
    assert "diverged in round" in summary.message
    assert "try a smaller a or d or lr" in summary.message
    assert 0 < summary.rounds < 60
    assert folder.summary() == summary
    records = [strict_json(line) for line in folder.metrics_file.read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, summary.rounds + 1))
    strict_json(folder.summary_file.read_text())


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    def stop_after_two(record: Record) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(small(), folder.path, [stop_after_two])
    assert folder.summary().status == "interrupted"
    assert folder.summary().rounds == len(folder.metrics()) == 2


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    def refuse(record: Record) -> None:
        raise UsageError("no more.")

    with pytest.raises(UsageError, match="no more"):
        execute(small(), folder.path, [refuse])
    assert (folder.summary().status, folder.summary().message) == ("failed", "no more.")


def test_a_bug_is_raised_and_noted(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(small(), tmp_path / "run", [lambda record: 1 // 0])  # type: ignore[arg-type,return-value]
    assert RunFolder(tmp_path / "run").summary().message == "ZeroDivisionError: integer division or modulo by zero"


def test_a_line_cut_short_is_left_out(finished: RunFolder, tmp_path: Path) -> None:
    torn = RunFolder(tmp_path)
    torn.metrics_file.write_text(finished.metrics_file.read_text()[:-20])
    assert torn.metrics() == finished.metrics()[:-1]


def test_rewinding_leaves_whole_rounds(finished: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text(finished.metrics_file.read_text() + '{"round": 5, "te')
    assert folder.rewind(3) == folder.metrics() == finished.metrics()[:3]
    assert finished.metrics_file.read_text().startswith(folder.metrics_file.read_text())


# -- folders that cannot be used ----------------------------------------------------------------------------------------


def test_a_folder_in_use_is_left_alone(finished: RunFolder, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"is already in use: .*name another with --out"):
        execute(small(seed=5), finished.path)
    assert {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()} == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is already in use"):
        execute(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_was_killed_before_it_began_is_begun(tmp_path: Path) -> None:
    """config.yaml is written last: without it there is nothing to resume, and what was written before it is no obstacle."""
    execute(small(rounds=1), tmp_path / "whole")
    for name in ("fingerprint.json", "provenance.json", "metrics.jsonl", ".config.yaml.4711.part"):
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / name).write_text("")
    assert (
        execute(small(rounds=1), tmp_path / "part").final_accuracy
        == RunFolder(tmp_path / "whole").summary().final_accuracy
    )
    (tmp_path / "part" / "config.yaml").unlink()
    with pytest.raises(UsageError, match="is already in use"):
        execute(small(rounds=1), tmp_path / "part")


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert execute(small(rounds=1), tmp_path / "run").status == "finished"


def test_places_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file: name a folder"):
        execute(small(), tmp_path / "file")
    with pytest.raises(UsageError, match=r"file is not a folder one may write to|Not a directory"):
        execute(small(), tmp_path / "file" / "below")
    with pytest.raises(UsageError, match=r"name another (folder )?with --out"):
        execute(small(), Path("/proc/no/such/place"))
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UsageError, match="is not a folder one may write to"):
            execute(small(), tmp_path / "locked" / "run")


@pytest.mark.parametrize(
    "options",
    [
        {"cohort": 21},
        {"lr": 11.0, "set": {"gamma": 0.1}},
        {"algorithm": "fedpd"},
        {"model": "cnn"},
        {"split": "shards:2000"},
    ],
)
def test_nothing_is_written_for_what_cannot_run(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        execute(small(**options), tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_next_free(tmp_path: Path) -> None:
    assert next_free(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert next_free(tmp_path / "run") == tmp_path / "run-3"


def test_json_has_no_nan() -> None:
    assert finite({"a": [1.0, float("nan")], "b": float("inf"), "c": {"d": "x"}}) == {
        "a": [1.0, None],
        "b": None,
        "c": {"d": "x"},
    }


def test_summaries_read_back(finished: RunFolder) -> None:
    assert RunSummary(**finished.summary().to_dict()) == finished.summary()
