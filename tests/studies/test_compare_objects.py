"""``fv.compare`` and ``fv.tune``: studies of one's own objects."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedvra as fv
from crashes import untimed
from fedvra.cli import main
from fedvra.core.errors import FedvraError
from fedvra.runs.files import RunFolder
from fedvra.studies.parallel import Job, Processes, carry_out

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(240, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > INPUTS[:, 1]).astype(np.int64)


def net() -> nn.Module:
    return nn.Linear(4, 2)


def split(seed: int) -> fv.FederatedData:
    return fv.split((INPUTS, LABELS), fv.Dirichlet(1.0), clients=8, seed=seed, test=(INPUTS[:40], LABELS[:40]))


STUDY: dict[str, Any] = {
    "problem": fv.Supervised(net), "data": split, "sampler": fv.Uniform(3), "work": fv.Epochs(1), "lr": 0.1,
    "batch_size": 10, "rounds": 4,
}  # fmt: skip
FOUR = [fv.FedVRA(), fv.FedVRA(gamma=0.1, a=5), fv.FedAvg(), fv.FedDyn()]


def records(folder: Path) -> dict[str, Any]:
    found = sorted(folder.rglob("metrics.jsonl"))
    return {str(file.parent.relative_to(folder)): untimed(RunFolder(file.parent).metrics()) for file in found}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fv.compare(FOUR, **STUDY, seeds=range(2), out=tmp_path_factory.mktemp("study") / "first", at_once=2)


def test_the_table_is_that_of_the_command_line(compared: Any) -> None:
    labels = ["FedVRA (auto)", "FedVRA (gamma=0.1, a=5)", "FedAvg", "FedDyn"]
    rows = compared.rows()
    assert [row.label for row in rows] == labels
    assert all(row.finished == 2 and row.final_accuracy.runs == 2 for row in rows)
    assert "±" in compared.markdown()
    for file in ("table.md", "comparison.json", "curves.png", "report.html", "plan.json"):
        assert (compared.out / file).stat().st_size > 100
    for label in ("FedAvg", "FedDyn", "FedVRA (auto)"):
        assert label in (compared.out / "report.html").read_text()


def test_it_is_bitwise_what_single_runs_come_to(compared: Any) -> None:
    data = split(1)
    one = fv.simulate(fv.FedAvg(), **{**STUDY, "data": data}, seed=1, workers=1)
    run = next(run for run in compared.runs if run.label == "FedAvg" and run.summary.seed == 1)
    assert untimed(run.metrics) == untimed(json.loads(json.dumps(one.metrics)))


def test_it_speaks_for_itself(compared: Any, tmp_path: Path) -> None:
    frame = compared.to_pandas()
    assert set(frame["label"]) == {row.label for row in compared.rows()}
    assert sorted(set(frame["seed"])) == [0, 1]
    assert len(frame) == 8 * 4
    assert len(compared.plot().axes[0].lines) >= 4
    page = compared.report(tmp_path / "page.html")
    assert page.stat().st_size > 10_000
    shown = compared._repr_html_()
    assert "<table>" in shown
    assert "<svg" in shown
    assert str(compared) == compared.markdown()
    assert repr(compared) == f"<Comparison of 8 runs. {compared.title()}>"


def test_the_same_call_goes_on(tmp_path: Path, compared: Any) -> None:
    out = tmp_path / "mine"
    with pytest.raises(FedvraError, match="failed: ZeroDivisionError"):
        fv.compare(
            FOUR, **STUDY, seeds=range(2), out=out, at_once=2, callbacks=[lambda record: 1 / (record["round"] - 3)]
        )
    assert (out / "plan.json").exists()
    again = fv.compare(FOUR, **STUDY, seeds=range(2), out=out, at_once=1)
    assert records(out) == records(compared.out)
    assert [row.final_accuracy for row in again.rows()] == [row.final_accuracy for row in compared.rows()]
    with pytest.raises(fv.UsageError, match=r"holds a run with lr 0.1, and this one has 0.2"):
        fv.compare(FOUR, **{**STUDY, "lr": 0.2}, seeds=range(2), out=out)
    refused = CliRunner().invoke(main, ["resume", str(out)])
    assert refused.exit_code == 2
    assert "make the same call of fv.compare again" in refused.output


def _child(out: Path) -> None:
    os.setpgid(0, 0)
    fv.compare(FOUR, **STUDY, seeds=range(2), out=out, at_once=2, callbacks=[lambda record: time.sleep(0.05)])


def test_a_comparison_survives_sigkill(tmp_path: Path, compared: Any) -> None:
    out = tmp_path / "mine"
    process = multiprocessing.get_context("fork").Process(target=_child, args=(out,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    deadline = time.monotonic() + 90
    while len(list(out.rglob("summary.json"))) < 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    done = len(list(out.rglob("summary.json")))
    assert 1 <= done < 8
    fv.compare(FOUR, **STUDY, seeds=range(2), out=out)
    assert records(out) == records(compared.out)


def test_without_a_folder_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    made = fv.compare({"ours": fv.FedVRA(), "theirs": fv.FedAvg()}, **STUDY, progress=True)
    assert [row.label for row in made.rows()] == ["ours", "theirs"]
    shown = capsys.readouterr().out
    assert "[2/2]" in shown
    place = made.out
    assert place.is_dir()
    del made
    assert not place.exists()


def test_a_run_that_diverges_is_part_of_the_result() -> None:
    steep = fv.Quadratic(1e30 * torch.ones(8, 1, 1), torch.ones(8, 1))
    given = {"sampler": fv.Full(), "work": fv.Steps(2), "rounds": 3, "lr": 1e9}
    made = fv.compare([fv.FedAvg()], problem=steep, **given)
    assert made.rows()[0].diverged == 1


def test_a_search(tmp_path: Path) -> None:
    over = {"alpha": [0.01, 0.1], "work": [fv.Epochs(1), fv.Epochs(3)], "lr": [0.001, 0.1]}
    given = {name: value for name, value in STUDY.items() if name not in ("work", "lr")} | {"rounds": 6}
    found = fv.tune(fv.FedDyn(), over, **given, seeds=[0, 1], out=tmp_path / "tuned")
    assert found.best.given["lr"] == 0.1
    assert found.best.given["work"] == fv.Epochs(3)  # the object itself
    assert sorted(trial.rounds for trial in found.trials) == [2] * 5 + [6] * 3
    assert len(found.to_pandas()) == 8
    assert "<table>" in found._repr_html_()
    assert str(found) == found.markdown()
    assert repr(found) == f"<Search over alpha, work, lr. {found.title()}>"
    assert found.report(tmp_path / "page.html").stat().st_size > 10_000
    stored = json.loads((tmp_path / "tuned" / "tuning.json").read_text())
    assert stored["result"]["best"]["work"] == "Epochs(count=3)"
    again = fv.tune(fv.FedDyn(), over, **given, seeds=[0, 1], out=tmp_path / "tuned")
    assert [trial.given for trial in again.trials] == [trial.given for trial in found.trials]
    refused = CliRunner().invoke(main, ["resume", str(tmp_path / "tuned")])
    assert "make the same call of fv.tune again" in refused.output


REFUSED: dict[str, tuple[Any, str]] = {
    "a name": (lambda: fv.compare("fedvra", **STUDY), "algorithms must be objects such as fv.FedVRA"),
    "a class": (lambda: fv.compare([fv.FedVRA], **STUDY), r"such as fv.FedVRA\(\), got FedVRA"),
    "nobody": (lambda: fv.compare([], **STUDY), "name at least one algorithm"),
    "twice": (lambda: fv.compare([fv.FedAvg(), fv.FedAvg()], **STUDY), "FedAvg is there twice"),
    "seeds": (lambda: fv.compare(FOUR, **STUDY, seeds=[1, 1]), "names one twice"),
    "no seed": (lambda: fv.compare(FOUR, **STUDY, seeds=[]), "name at least one seed"),
    "a slip": (lambda: fv.compare(FOUR, **STUDY, round=3), "no argument of a study 'round': did you mean 'rounds'"),
    "no sampler": (
        lambda: fv.compare(FOUR, problem=STUDY["problem"], data=split, work=fv.Epochs(1), rounds=1),
        "a study needs sampler=",
    ),
    "a sampler too large": (lambda: fv.compare(FOUR, **{**STUDY, "sampler": fv.Uniform(9)}), "more than the number"),
    "nothing to try": (lambda: fv.tune(fv.FedDyn(), {}, **STUDY), "say what to try"),
    "no such knob": (lambda: fv.tune(fv.FedDyn(), {"alpa": [1]}, **STUDY), "no argument of a study 'alpa'"),
    "tried twice": (lambda: fv.tune(fv.FedDyn(), {"alpha": [1, 1]}, **STUDY), "alpha: every value is tried once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_misuse_is_said_in_a_sentence(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(fv.UsageError, match=message):
        call()


def test_the_command_lines_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(fv.UsageError, match="was started on the command line: use `fedvra resume"):
        fv.compare(FOUR, **STUDY, out=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(fv.UsageError, match="already in use"):
        fv.compare(FOUR, **STUDY, out=tmp_path / "other")


def test_jobs_that_die_are_noticed() -> None:
    def die(workers: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(FedvraError, match="second failed: its process ended with code -9"):
        carry_out([Job("first", lambda workers: None), Job("second", die)], Processes(2, workers=1))
