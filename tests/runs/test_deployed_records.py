"""Which model a run's figures are of: records, targets, summaries, options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.core.goals import Goal
from fedvra.runs.cache import fingerprint
from fedvra.runs.config import build, configure
from fedvra.runs.files import RunFolder, RunSummary
from fedvra.runs.history import rounds_to, rounds_to_stay, worst_fall
from fedvra.show.gather import gather
from fedvra.show.terminal import outcome
from fedvra.studies.execution import execute, resume
from small_nets import SETTINGS, mlp, small_data
from small_run import small


def records(x0: list[float], model: list[float] | None = None) -> list[dict[str, Any]]:
    made = [{"round": k + 1, "test_accuracy": a} for k, a in enumerate(x0)]
    return made if model is None else [{**m, "model_accuracy": a} for m, a in zip(made, model, strict=True)]


def test_targets_go_by_the_deployed_model_and_test_accuracy_is_x0s() -> None:
    both = records([0.4, 0.5, 0.95, 0.8], [0.6, 0.92, 0.93, 0.94])
    assert rounds_to(both, [50, 90, "test_accuracy=90"]) == {"50": 1, "90": 2, "test_accuracy=90": 3}
    assert rounds_to_stay(both, [90, "test_accuracy=90"]) == {"90": 2, "test_accuracy=90": None}
    assert rounds_to(records([0.4, 0.95]), [90]) == {"90": 2}


def test_a_fall_counts_from_round_20_on_and_between_evaluated_rounds() -> None:
    flat: list[Any] = [0.9, 0.1] * 9 + [0.9, 0.85, None, 0.8, 0.9, 0.87]
    assert worst_fall(records(flat)) == pytest.approx(0.05)
    assert worst_fall(records([0.5] * 19)) is None
    assert worst_fall(records([0.5] * 21)) == 0.0


def test_a_target_is_held_from_the_last_evaluated_round_back() -> None:
    some: list[Any] = [0.95, None, 0.85, None, 0.91, None, 0.92, None]
    assert rounds_to_stay(records(some), [90]) == {"90": 5}


def test_other_figures_are_the_deployed_models_too() -> None:
    record = {"round": 1, "f1": 0.5, "model_f1": 0.9, "validation_accuracy": 0.4, "model_validation_accuracy": 0.8}
    assert Goal.read("f1=0.8").reached(record)
    assert Goal.read("validation_accuracy=70").reached(record)
    assert not Goal.read("f1=0.8").reached({"round": 1, "f1": 0.5})


def test_a_run_stops_by_its_deployed_model(tmp_path: Path) -> None:
    summary = execute(small(deploy="mean", until=60, rounds=30, drop=0), tmp_path / "run")
    metrics = RunFolder(tmp_path / "run").metrics()
    assert summary.stopped is not None
    assert metrics[-1]["model_accuracy"] >= 0.6
    assert all(m["model_accuracy"] < 0.6 for m in metrics[:-1])


def test_the_summary_says_which_model_it_speaks_of(tmp_path: Path) -> None:
    summary = execute(small(deploy="ema:0.8", targets=[10, 99.9]), tmp_path / "run")
    metrics = RunFolder(tmp_path / "run").metrics()
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert written["deploy"] == summary.deploy == "ema:0.8"
    assert summary.final_accuracy == metrics[-1]["model_accuracy"]
    assert summary.x0_final_accuracy == metrics[-1]["test_accuracy"]
    assert summary.rounds_to_stay.keys() == summary.rounds_to.keys() == {"10", "99.9"}
    assert "(of the running mean of x0 (0.8))" in outcome("FedVRA", summary)
    plain = execute(small(deploy="x0"), tmp_path / "plain")
    assert plain.deploy == "x0"
    assert plain.x0_final_accuracy is None
    assert "(of" not in outcome("FedVRA", plain)
    assert plain.final_accuracy == summary.x0_final_accuracy


@pytest.mark.parametrize("deploy", ["mean", "ema:0.8"])
def test_a_resumed_run_comes_to_the_same_records(deploy: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    execute(small(deploy=deploy), whole)
    execute(small(deploy=deploy, rounds=4), parts)
    resume(parts, rounds=10)
    found = [[m["model_loss"] for m in RunFolder(each).metrics()] for each in (whole, parts)]
    assert found[0] == found[1]


def test_own_metrics_and_validation_data_are_measured_of_both() -> None:
    data = fv.split(small_data().dataset, fv.IID(), clients=12, validation=0.2)
    metrics = {"share": lambda outputs, targets: float((outputs.argmax(1) == 0).float().mean())}
    given = {**SETTINGS, "problem": fv.Supervised(mlp), "data": data, "metrics": metrics, "rounds": 3, "workers": 1}
    last = fv.simulate(fv.FedVRA(), deploy="mean", **given).metrics[-1]
    for name in ("model_accuracy", "model_loss", "model_share", "model_validation_accuracy", "model_validation_share"):
        assert last[name] is not None
    assert last["model_validation_loss"] != last["validation_loss"]


def test_the_option_is_an_algorithms_own_unless_it_is_said() -> None:
    assert configure({"task": "digits"}).deploy == fv.FedVRA.deploy.text()
    assert configure({"task": "digits", "deploy": "ema: 0.90"}).deploy == "ema:0.9"
    assert build(configure({"task": "digits", "deploy": "mean"})).deployment.text() == "mean"
    written = configure({"task": "digits", "deploy": "mean"}).to_dict()
    assert configure(written).deploy == "mean"
    other = configure(written, {"algorithm": "fedavg"})  # as hyper-parameters do, it belongs to the algorithm before
    assert other.deploy == fv.FedAvg.deploy.text()
    assert configure(written, {"algorithm": "fedavg", "deploy": "mean"}).deploy == "mean"
    with pytest.raises(UsageError, match="deploy must be x0, mean, or ema"):
        configure({"task": "digits", "deploy": "median"})


def test_runs_from_before_there_was_a_choice_are_runs_for_x0(tmp_path: Path) -> None:
    execute(small(deploy="x0"), tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("deploy")]
    file.write_text("\n".join(lines))
    assert RunFolder(tmp_path / "run").config().deploy == "x0"
    old = json.loads((tmp_path / "run" / "summary.json").read_text())
    for name in ("deploy", "x0_final_accuracy", "x0_best_accuracy", "rounds_to_stay", "worst_fall"):
        del old[name]
    assert RunSummary(**old).deploy == "x0"


def test_the_name_of_a_run_for_x0_is_what_it_was() -> None:
    assert fingerprint(configure({"task": "digits", "deploy": "x0"})) == "05bb370ac5e2"
    assert fingerprint(configure({"task": "digits", "deploy": "mean"})) != "05bb370ac5e2"


def test_runs_that_differ_in_it_are_lines_of_one_table(tmp_path: Path) -> None:
    for deploy in ("x0", "mean"):
        execute(small(deploy=deploy), tmp_path / deploy)
    (experiment,) = gather([tmp_path])
    assert sorted(group.label for group in experiment.groups) == ["FedVRA (deploy=mean)", "FedVRA (deploy=x0)"]
