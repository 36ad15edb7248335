"""Who looks on: told in order, heard when they add to the record or end the run, the same after a resume."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fedvra as fv
from fedvra.callbacks.base import Run
from fedvra.callbacks.following import Following
from fedvra.cli import main
from fedvra.core.errors import UsageError
from fedvra.engines import checkpoint
from fedvra.runs.config import configure
from fedvra.runs.files import Record, RunFolder
from fedvra.studies.execution import execute, resume
from quadratics import quadratic

pytestmark = pytest.mark.usefixtures("no_picture")
SMALL = {"task": "digits", "rounds": 12, "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}


class Telling(fv.Callback):
    """Notes every call."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]], afterwards: bool = False) -> None:
        self.name, self.calls = name, calls
        self.afterwards = afterwards  # type: ignore[misc]

    def on_start(self, run: Run) -> None:
        self.calls.append((self.name, "start", run.round))

    def on_round_start(self, run: Run) -> None:
        self.calls.append((self.name, "before", run.round))

    def on_round(self, run: Run, record: Record) -> None:
        self.calls.append((self.name, "round", record["round"], len(run.records), "added" in record))
        record["added"] = True

    def on_end(self, run: Run) -> None:
        self.calls.append((self.name, "end", run.status))


def simulate(rounds: int = 3, **options: Any) -> fv.History:
    return fv.simulate(
        fv.FedVRA(gamma=0.5, a=2), problem=fv.Quadratic(*quadratic(4, 3, 0)), sampler=fv.Uniform(2), work=fv.Steps(2),
        lr=0.05, rounds=rounds, workers=1, **options,
    )  # fmt: skip


def test_all_are_told_those_that_only_read_after_those_that_add() -> None:
    calls: list[tuple[Any, ...]] = []
    simulate(rounds=1, callbacks=[Telling("reader", calls, True), Telling("adder", calls)])
    assert calls == [
        ("adder", "start", 0), ("reader", "start", 0),
        ("adder", "before", 0), ("reader", "before", 0),
        ("adder", "round", 1, 0, False), ("reader", "round", 1, 1, True),
        ("adder", "end", "finished"), ("reader", "end", "finished"),
    ]  # fmt: skip


def test_looking_on_changes_nothing() -> None:
    plain, watched = simulate(), simulate(callbacks=[Telling("x", [])])
    assert torch.equal(plain.x0, watched.x0)
    assert [m["added"] for m in watched.metrics] == [True] * 3


def test_all_are_told_of_the_end_even_where_one_fails() -> None:
    class Failing(fv.Callback):
        def on_round(self, run: Run, record: Record) -> None: ...

        def on_end(self, run: Run) -> None:
            raise OSError("the disk is full")

    calls: list[tuple[Any, ...]] = []
    with pytest.raises(OSError, match="full"):
        simulate(rounds=1, callbacks=[Failing(), Telling("x", calls)])
    assert calls[-1] == ("x", "end", "finished")


# -- ending a run --------------------------------------------------------------------------------------------------------


def in_second(record: Record) -> None:
    if record["round"] == 2:
        raise fv.StopRun("enough")


class InSecond(fv.Observer):
    def before(self, federation: Any) -> None: ...

    def after(self, federation: Any, seen: None) -> dict[str, Any]:
        if federation.state.round == 2:
            raise fv.StopRun("enough")
        return {}


class BeforeThird(fv.Callback):
    def on_round_start(self, run: Run) -> None:
        if run.round == 1:
            raise fv.StopRun("enough")

    def on_round(self, run: Run, record: Record) -> None: ...


@pytest.mark.parametrize(
    "options",
    [{"progress": in_second}, {"observers": [InSecond()]}, {"callbacks": [in_second]}, {"callbacks": [BeforeThird()]}],
)
def test_whoever_looks_on_can_end_the_run(options: dict[str, Any]) -> None:
    history, shorter = simulate(rounds=5, **options), simulate(rounds=2)
    assert [m.get("stopped") for m in history.metrics] == [None, "enough"]
    assert torch.equal(history.x0, shorter.x0)
    assert history.duals == shorter.duals


def test_patience_counts_rounds_since_the_best() -> None:
    values = [0.1, 0.5, 0.4, 0.5, 0.45, 0.6]
    played = follow([{"test_accuracy": v} for v in values], [fv.Patience(3)])
    assert len(played) == 5
    assert played[-1]["stopped"] == "test_accuracy has not improved since round 2."
    assert len(follow([{"test_accuracy": v} for v in values], [fv.Patience(4)])) == 6
    assert len(follow([{"test_loss": v} for v in (3, 2, 1, 1.5, 0.5)], [fv.Patience(2, metric="test_loss")])) == 5
    assert len(follow([{"test_loss": v} for v in (3, 2, 2.5, 2.2)], [fv.Patience(2, metric="test_loss")])) == 4
    assert len(follow([{"x": v} for v in (1, 1.05, 1.08, 2)], [fv.Patience(2, metric="x", least=0.1)])) == 3
    assert len(follow([{"x": v} for v in (3, 2, 1)], [fv.Patience(2, metric="x")])) == 3
    assert len(follow([{"x": v} for v in (3, 2, 1, 0)], [fv.Patience(2, metric="x", smaller=True)])) == 4


def test_validation_data_come_before_test_data() -> None:
    both = [{"test_accuracy": 0.99, "validation_accuracy": v} for v in (0.5, 0.98, 0.9)]
    assert len(follow(both, [fv.Until(97)])) == 2
    assert len(follow(both, [fv.Patience(1)])) == 3


@pytest.mark.parametrize(
    ("target", "expected"),
    [(97, 2), ("97", 2), ("f1=0.8", 3), ("test_loss=0.3", 3), ("f1>=0.75", 2), ("f1<=0.9", 1), ("d/x=3", 3)],
)
def test_until_a_target(target: Any, expected: int) -> None:
    records = [
        {"test_accuracy": a, "f1": f, "test_loss": loss, "d": {"x": k}}
        for k, (a, f, loss) in enumerate([(0.9, 0.5, 1.0), (0.971, 0.75, 0.5), (0.98, 0.81, 0.3), (1, 1, 0)], 1)
    ]
    assert len(follow(records, [fv.Until(target)])) == expected


def follow(figures: list[dict[str, Any]], callbacks: list[fv.Callback]) -> list[Record]:
    """A run that makes these records, as far as it gets."""
    run = Run(len(figures))
    with Following(run, callbacks) as following:
        while not run.over:
            record = {"round": run.round + 1, **figures[run.round], "seconds": 0.0}
            following.round(lambda record=record: record)  # type: ignore[misc]
    return run.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callbacks": [fv.Patience]}, "a callback is an object such as fv.Patience"),
        ({"callbacks": ["patience"]}, "a callback is an object such as fv.Patience"),
        ({"callbacks": [fv.Patience(2)]}, "goes by the accuracy, which is not measured here: name another figure"),
        (
            {"callbacks": [fv.Until("f1=0.5")]},
            "until goes by 'f1', which the records do not have: name one of .*train_loss",
        ),
        ({"callbacks": [fv.Until(97)], "eval_every": 0}, "eval_every=0 never measures any"),
    ],
)
def test_misuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(**options)


@pytest.mark.parametrize("bad", [120, "f1", "f1=high", True, "0", None])
def test_targets_that_are_none(bad: Any) -> None:
    with pytest.raises(UsageError, match="per cent"):
        fv.Until(bad)


def test_they_are_values() -> None:
    for each in (fv.Patience(3, metric="f1"), fv.Until(97), fv.StationarityGap(2), fv.Diagnostics(3)):
        assert pickle.loads(pickle.dumps(each)) == each
    assert fv.Patience(3) != fv.Patience(4)


# -- in folders ------------------------------------------------------------------------------------------------------------


def untimed(folder: Path) -> list[Record]:
    return [{k: v for k, v in m.items() if not k.startswith("seconds")} for m in RunFolder(folder).metrics()]


@pytest.mark.parametrize("options", [{"until": "85"}, {"patience": 1}, {"until": "test_loss=0.8"}])
def test_a_run_that_stops_early_does_so_in_the_same_round_when_resumed(options: dict[str, Any], tmp_path: Path) -> None:
    config = configure(SMALL, {"checkpoint_every": 2, "lr": 0.05}, options)
    summary = execute(config, tmp_path / "whole")
    assert summary.status == "finished"
    assert 2 < summary.rounds < 12
    assert summary.stopped == RunFolder(tmp_path / "whole").metrics()[-1]["stopped"]

    def crash(record: Record) -> None:
        if record["round"] == summary.rounds - 1:
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        execute(config, tmp_path / "again", [crash])
    assert resume(tmp_path / "again", workers=2).stopped == summary.stopped
    assert untimed(tmp_path / "again") == untimed(tmp_path / "whole")
    assert_same_state(tmp_path / "again", tmp_path / "whole")
    assert resume(tmp_path / "again", rounds=99) == RunFolder(tmp_path / "again").summary()  # it has ended


def assert_same_state(one: Path, other: Path) -> None:
    from contextlib import closing

    from fedvra.engines.federation import Federation
    from fedvra.runs.config import build

    states = []
    for folder in (one, other):
        with closing(Federation(build(RunFolder(folder).config()), 1)) as federation:
            checkpoint.restore(federation, folder / "checkpoint")
            states.append((federation.state.x0, federation.state.lam, dict(federation.clients.duals.items())))
    (x0, lam, duals), (x0_other, lam_other, duals_other) = states
    assert torch.equal(x0, x0_other)
    assert torch.equal(lam, lam_other)
    assert duals.keys() == duals_other.keys()
    assert all(torch.equal(duals[i], duals_other[i]) for i in duals)


def test_a_stop_that_was_not_written_into_the_summary(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the summary, after a function had ended the run."""

    def in_fifth(record: Record) -> None:
        if record["round"] == 5:
            raise fv.StopRun("enough")

    execute(configure(SMALL), tmp_path / "run", [in_fifth])
    folder = RunFolder(tmp_path / "run")
    assert [m.get("stopped") for m in folder.metrics()] == [None] * 4 + ["enough"]
    folder.summary_file.unlink()
    played: list[int] = []
    summary = resume(tmp_path / "run", [lambda record: played.append(record["round"])])
    assert (summary.rounds, summary.stopped, played) == (5, "enough", [])


def test_on_the_command_line(tmp_path: Path) -> None:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "task"]
    command = [
        "run",
        "digits",
        *arguments,
        "--lr=0.05",
        "--until",
        "60",
        "--targets",
        "50,test_loss=2.1",
        "--out",
        str(tmp_path / "r"),
    ]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0, shown.output
    assert "stopped: 60% was reached in round" in shown.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["rounds"] < 12
    assert list(summary["rounds_to"]) == ["50", "test_loss=2.1"]
    assert all(summary["rounds_to"].values())
    again = CliRunner().invoke(main, ["resume", str(tmp_path / "r")])
    assert "finished after round" in again.stdout
    assert "60% was reached" in again.stdout
    bad = CliRunner().invoke(main, ["run", "digits", "--until", "soon"])
    assert bad.exit_code == 2
    assert "until must be an accuracy in per cent such as 97" in bad.stderr
