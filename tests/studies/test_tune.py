"""``fedvra tune``: every combination, the poor ones stopped early, the same result after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from crashes import untimed
from fedvra.cli import main
from fedvra.core.errors import RunInterrupt, UsageError
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder, RunSummary, Status
from fedvra.show.comparison import Run
from fedvra.show.tuning import Trial, Tuning
from fedvra.studies import comparing as compare
from fedvra.studies.execution import execute
from fedvra.studies.tuning import resume_tuning, tune
from small_run import SMALL

OPTIONS = {**SMALL, "algorithm": "feddyn", "rounds": 6, "drop": 0.0}


pytestmark = pytest.mark.usefixtures("no_picture")


def fedvra(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def standing(accuracies: list[float], status: Status) -> Run:
    costs = {"seconds": 0.0, "local_steps": 1, "bytes_up": 0, "bytes_down": 0}
    metrics = [{"round": r + 1, "test_accuracy": a, "test_loss": 1 - a, **costs} for r, a in enumerate(accuracies)]
    return Run("", RunSummary.of(configure(OPTIONS), metrics, status, None, None), metrics)


def trial(*curves: list[float], status: Status = "finished") -> Trial:
    return Trial({}, "", [standing(curve, status) for curve in curves])


# -- which is better ------------------------------------------------------------------------------------------------------


def test_without_a_target_the_last_tenth_of_the_rounds_decides() -> None:
    lucky, steady = trial([0.5] * 18 + [0.2, 0.9]), trial([0.5] * 18 + [0.6, 0.6])
    assert steady.accuracy is not None
    assert steady.accuracy.mean == pytest.approx(0.6)
    assert steady.rank(None) < lucky.rank(None)


def test_with_a_target_more_seeds_come_first_then_fewer_rounds() -> None:
    both, one, sooner = trial([0.1, 0.9], [0.1, 0.9]), trial([0.9, 0.9], [0.1, 0.8]), trial([0.9, 0.2], [0.1, 0.9])
    assert sorted([one, both, sooner], key=lambda t: t.rank(90)) == [sooner, both, one]
    assert trial([0.1, 0.5]).rank(90) < trial([0.1, 0.4]).rank(90)  # nobody is there yet: accuracy


def test_what_diverged_comes_last_and_only_once_it_has() -> None:
    good, bad = trial([0.1, 0.2, 0.3]), trial([0.8, 0.9], status="diverged")
    assert good.rank(None) < bad.rank(None)
    assert bad.until(2).rank(None) < good.until(2).rank(None)
    assert bad.until(3).diverged == 1


@pytest.mark.parametrize(("best", "edges"), [("1", 1), ("0.1", 0), ("auto", 0)])
def test_a_best_value_at_the_edge_is_mentioned(best: str, edges: int, tmp_path: Path) -> None:
    found = replace(trial([0.1]), given={"alpha": best})
    tuning = Tuning(configure(OPTIONS), {"alpha": ["0.01", "0.1", "1"]}, [found], None, tmp_path)
    if best == "auto":
        tuning = replace(tuning, over={"alpha": ["auto", "1"]})
    assert len(tuning.at_the_edge()) == edges


# -- the search -----------------------------------------------------------------------------------------------------------


def test_those_that_go_on_are_what_a_whole_run_is(tmp_path: Path) -> None:
    over = {"alpha": [0.1, 10.0], "lr": [0.001, 0.1]}
    found = tune(over, OPTIONS, out=tmp_path / "out", seeds=[0, 1])
    assert [t.rounds for t in found.trials] == [6, 6, 2, 2]
    assert {t.given["lr"] for t in found.trials[:2]} == {0.1}
    best = found.best
    for seed in (0, 1):
        given = {"set": {"alpha": best.given["alpha"]}, "lr": best.given["lr"], "seed": seed}
        execute(configure(OPTIONS, given), tmp_path / f"whole-{seed}")
        made = RunFolder(tmp_path / "out" / best.folder / f"seed-{seed}")
        assert untimed(made.metrics()) == untimed(RunFolder(tmp_path / f"whole-{seed}").metrics())
    everything = tune(over, OPTIONS, out=tmp_path / "full", seeds=[0, 1], full=True)
    assert [t.rounds for t in everything.trials] == [6] * 4
    assert everything.best.given == best.given
    kept = json.loads((tmp_path / "out" / "tuning.json").read_text())["result"]
    assert kept == json.loads(json.dumps(found.to_dict()))
    assert (tmp_path / "out" / "table.md").read_text() == found.markdown()


@pytest.mark.parametrize("stop_at", [1, 5, 7])
def test_a_search_goes_on_to_the_same_result(stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = {"alpha": [0.1, 1.0, 10.0], "lr": [0.01, 0.1]}
    whole = tune(over, OPTIONS, out=tmp_path / "whole")
    calls = 0

    def interrupted(real: Any) -> Any:
        def played(*args: Any, **options: Any) -> RunSummary:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise RunInterrupt("interrupted")
            return real(*args, **options)

        return played

    for verb in ("execute", "resume"):
        monkeypatch.setattr(compare, verb, interrupted(getattr(compare, verb)))
    out = tmp_path / "out"
    with pytest.raises(RunInterrupt, match=f"`fedvra resume {out}` continues"):
        tune(over, OPTIONS, out=out)
    again = resume_tuning(out)
    assert {**again.to_dict(), "folder": ""} == {**whole.to_dict(), "folder": ""}
    before = calls
    assert resume_tuning(out).best.given == whole.best.given
    assert calls == before  # everything was there


# -- the command ------------------------------------------------------------------------------------------------------------

SMALL_OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items() if name != "task"]


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "--over",
        "alpha=0.1,1",
        "--over",
        "batch-size=10,full",
        "--over",
        "drop-last=true",
        "--target",
        "20",
        "--seeds",
        "0,1",
    ]
    result = fedvra("tune", "digits", *SMALL_OPTIONS, *words, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["best"]) == {"alpha", "batch_size", "drop_last"}
    expected = f"--set alpha={found['best']['alpha']} --batch-size {found['best']['batch_size']} --drop-last"
    assert found["options"] == expected
    assert len(found["settings"]) == 4
    again = fedvra("resume", out)
    assert again.exit_code == 0, again.output
    assert f"Best:   {found['options']}" in again.output
    assert "rounds to 20%" in again.output
    assert "rounds stay as they are" in fedvra("resume", out, "--rounds", "9").output


def test_where_every_setting_diverges(tmp_path: Path) -> None:
    result = fedvra(
        "tune", "digits", *SMALL_OPTIONS, "--algorithm=fedavg", "--over", "lr=1e30,1e31", "--out", tmp_path / "out"
    )
    assert result.exit_code == 1
    assert "Every setting diverged" in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say what to try"),
        (["--over", "alfa=1"], "did you mean 'alpha'"),
        (["--over", "rounds=1,2"], "no hyper-parameter of feddyn or option 'rounds'"),
        (["--over", "alpha"], "over takes NAME=VALUE"),
        (["--over", "alpha=1,1"], "alpha: every value is tried once"),
        (["--over", "alpha=1", "--over", "alpha=2"], "names something twice"),
        (["--over", "alpha=1,-2"], "alpha must be"),
        (["--over", "alpha=1,x"], "alpha of feddyn must be a number"),
        (["--over", "alpha=1", "--target", "101"], "an accuracy in per cent"),
    ],
)
def test_bad_usage_is_found_out_before_anything_is_run(words: list[str], says: str, tmp_path: Path) -> None:
    result = fedvra("tune", "digits", *SMALL_OPTIONS, *words, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert not (tmp_path / "out").exists()


def test_python_takes_the_same(tmp_path: Path) -> None:
    found = tune(
        {"alpha": np.geomspace(0.1, 1, 2), "steps": np.arange(1, 3)}, OPTIONS, out=tmp_path / "arrays", full=True
    )
    assert {tuple(trial.given.values()) for trial in found.trials} == {(0.1, 1), (0.1, 2), (1.0, 1), (1.0, 2)}
    tables = tune({"mu": [[0.1] * 20, [1.0] * 20]}, {**OPTIONS, "algorithm": "fedprox"}, out=tmp_path / "tables")
    assert tables.at_the_edge() == []
    assert {trial.folder for trial in tables.trials} == {"setting-1", "setting-2"}
    with pytest.raises(UsageError, match="name at least one value"):
        tune({"alpha": []}, OPTIONS, out=tmp_path / "out")
