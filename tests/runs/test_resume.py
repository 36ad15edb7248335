"""Going on: from wherever a run was left, to where it would have come by itself, or further."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from crashes import outcome, untimed
from fedvra.cli import main
from fedvra.core.errors import FedvraError, RunInterrupt, UsageError
from fedvra.runs.files import Record, RunFolder
from fedvra.runs.options import RunConfig
from fedvra.state.durable import snapshots
from fedvra.studies import comparing
from fedvra.studies.comparing import compare, resume_comparison
from fedvra.studies.execution import execute, resume
from fedvra.studies.stopping import stop_on_signal
from small_run import SMALL, small

pytestmark = pytest.mark.usefixtures("no_picture")


def stopped(path: Path, after: int, **options: Any) -> RunFolder:
    """A run that came to a sudden end after some round."""

    def stop(record: Record) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(small(**options), path, [stop])
    return RunFolder(path)


def fedvra(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


# -- one run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "workers"), [(1, 1), (3, 2), (8, 1)])
def test_a_run_goes_on_as_if_it_had_not_stopped(after: int, workers: int, whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after)
    played: list[int] = []
    summary = resume(folder.path, [lambda record: played.append(record["round"])], workers=workers)
    assert played[0] == max(r for r in (0, 3, 6, 9) if r < max(after, 1)) + 1
    assert (summary.status, summary.rounds) == ("finished", 10)
    assert outcome(folder.path) == outcome(whole)
    assert folder.config() == small()


@pytest.mark.parametrize("local", ["sgd:momentum=0.9,clip=1", "adam"])
def test_an_optimiser_starts_anew_in_each_round_so_a_run_goes_on(local: str, tmp_path: Path) -> None:
    options = {"local": local, "algorithm": "fedavg", "weight_decay": 0, "rounds": 5}
    execute(small(**options), tmp_path / "whole")
    folder = stopped(tmp_path / "run", 4, **options)
    resume(folder.path)
    assert outcome(folder.path) == outcome(tmp_path / "whole")
    assert folder.config().local == ("adam" if local == "adam" else "sgd:clip=1,momentum=0.9")


def test_a_run_may_be_extended(whole: Path, tmp_path: Path) -> None:
    execute(small(rounds=4), tmp_path / "run")
    assert resume(tmp_path / "run", rounds=10).rounds == 10
    assert outcome(tmp_path / "run") == outcome(whole)
    assert RunFolder(tmp_path / "run").config() == small()  # so that the next resume knows


def test_or_shortened_but_not_below_where_it_is(whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 8)
    with pytest.raises(UsageError, match="is at round 6 already: --rounds must be at least that"):
        resume(folder.path, rounds=5)
    assert len(folder.metrics()) == 8
    assert resume(folder.path, rounds=7).rounds == 7
    assert untimed(folder.metrics()) == untimed(RunFolder(whole).metrics())[:7]


def test_a_run_that_has_ended_says_so(whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    shown = fedvra("resume", whole)
    assert shown.exit_code == 0
    assert "finished after round 10; --rounds N with N > 10 extends it." in shown.stdout
    assert json.loads(fedvra("resume", whole, "--json").stdout)["rounds"] == 10
    assert resume(whole) == RunFolder(whole).summary()
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_so_does_one_that_diverged(tmp_path: Path) -> None:
    execute(small(rounds=60, set={"gamma": 0.1, "a": 1000}, model="mlp"), tmp_path / "run")
    shown = fedvra("resume", tmp_path / "run", "--rounds", "100")
    assert shown.exit_code == 1
    assert "diverged after round" in shown.stdout


def test_a_run_that_failed_can_go_on(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(small(), tmp_path / "run", [lambda record: 1 // (5 - record["round"])])  # type: ignore[arg-type,return-value]
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


def test_an_end_that_was_not_written_down(whole: Path, tmp_path: Path) -> None:
    """Killed between the last checkpoint and the summary."""
    execute(small(), tmp_path / "run")
    RunFolder(tmp_path / "run").summary_file.unlink()
    assert resume(tmp_path / "run", [lambda record: pytest.fail("there was nothing left to play")]).status == "finished"
    assert outcome(tmp_path / "run") == outcome(whole)


def test_while_a_run_goes_on_there_is_no_summary(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 5)
    assert folder.summary_file.exists()
    seen: list[bool] = []
    resume(folder.path, [lambda record: seen.append(folder.summary_file.exists())])
    assert not any(seen)


# -- what may have happened to the records and checkpoints --------------------------------------------------------------


@pytest.mark.parametrize("tail", ['{"round": 9, "test_acc', "\0\0\0\0\n", '{"round": 12}\n', "[]\n", "\xff\n"])
def test_records_with_a_torn_end(tail: str, whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 8)
    with folder.metrics_file.open("a", encoding="latin1") as file:
        file.write(tail)
    assert len(folder.metrics()) == 8
    resume(folder.path)
    assert outcome(folder.path) == outcome(whole)


def test_records_that_were_lost(whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 8)
    some = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(some[:4]))  # the checkpoint of round 6 is of no use without rounds 5 and 6
    resume(folder.path)
    assert outcome(folder.path) == outcome(whole)


def test_too_many_lost_records_are_not_made_up_for_silently(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 8)
    folder.metrics_file.unlink()
    with pytest.raises(FedvraError, match="the records end at round 0, before the checkpoint"):
        resume(folder.path)
    assert [path.name for path in snapshots(folder.checkpoints)] == ["000003", "000006"]


def test_before_the_first_checkpoint_a_run_starts_over(whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 2)
    assert not folder.checkpoints.exists()
    resume(folder.path)
    assert outcome(folder.path) == outcome(whole)


def test_killed_before_the_first_record(whole: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.config_file.write_text(small().to_yaml())
    resume(folder.path)
    assert outcome(folder.path) == outcome(whole)


@pytest.mark.parametrize("damaged", [("000006",), ("000003", "000006")])
def test_damaged_checkpoints_cost_time_and_nothing_else(damaged: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 8)
    for name in damaged:
        file = folder.checkpoints / name / "duals-00000.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=r"is damaged \(duals|starting over"):
        resume(folder.path)
    assert outcome(folder.path) == outcome(whole)


def test_a_warning_on_the_command_line_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped(tmp_path / "run", 8)
    (folder.checkpoints / "000006" / "manifest.json").unlink()
    monkeypatch.setattr("warnings.filters", [])
    shown = fedvra("resume", folder.path)
    assert shown.exit_code == 0
    path = folder.checkpoints / "000006"
    sentence = f"checkpoint {path} is damaged (manifest.json: No such file or directory) and passed over."
    assert shown.stderr == f"Warning: {sentence}\n"


def test_where_there_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        shown = fedvra("resume", path)
        assert shown.exit_code == 2
        assert shown.stderr == f"Error: there is no run in {path}: name the folder of one, in which config.yaml is.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [["--rounds", "many"], ["--workers", "0"], ["--round", "3"]])
def test_options_that_make_no_sense(option: list[str], whole: Path) -> None:
    assert fedvra("resume", whole, *option).exit_code == 2


def test_resume_shows_what_run_shows(tmp_path: Path) -> None:
    """What is shown counts the rounds before: the run is stopped before one that falls below the best of them."""
    execute(small(algorithm="fedavg", steps=20), tmp_path / "whole")
    accuracies = [record["test_accuracy"] for record in RunFolder(tmp_path / "whole").metrics()]
    fallen = next(k for k in range(2, 10) if accuracies[k] < max(accuracies[:k]))
    folder = stopped(tmp_path / "run", fallen + 1, algorithm="fedavg", steps=20)
    shown = fedvra("resume", folder.path, "--workers", "2", "--json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {**folder.summary().to_dict(), "folder": str(folder.path)}
    assert (line := f"FedAvg on digits  round  {fallen + 1}/10") in shown.stderr
    assert f"best {100 * max(accuracies[:fallen]):.2f}%" in shown.stderr.split(line)[1].split("\n")[0]


# -- a comparison -------------------------------------------------------------------------------------------------------


def test_a_comparison_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SMALL, "rounds": 4, "checkpoint_every": 2, "targets": "20,90"}
    algorithms = "fedavg,fedvra:a=2,scaffold"  # the first finishes, the second is interrupted, the third never starts
    expected = compare(algorithms, options, out=tmp_path / "expected")
    calls = 0

    def interrupted(config: RunConfig, out: Path, callbacks: Any, title: str) -> Any:
        nonlocal calls
        calls += 1

        def stop(record: Record) -> None:
            if calls == 2 and record["round"] == 3:
                raise RunInterrupt("interrupted after round 3; go on.")

        return execute(config, out, [*callbacks, stop], title)

    monkeypatch.setattr(comparing, "execute", interrupted)
    out = tmp_path / "out"
    with pytest.raises(RunInterrupt, match=rf"interrupted; `fedvra resume {out}` continues"):
        compare(algorithms, options, out=out)
    first = RunFolder(out / "fedavg" / "seed-0")
    done = first.summary_file.stat().st_ino
    monkeypatch.undo()
    shown = fedvra("resume", out, "--workers", "2")
    assert shown.exit_code == 0, shown.output
    assert "FedVRA (a=2)" in shown.stdout
    assert first.summary_file.stat().st_ino == done  # left alone
    for slug in ("fedavg", "fedvra_a=2", "scaffold"):
        assert outcome(out / slug / "seed-0") == outcome(expected.out / slug / "seed-0")
    again = resume_comparison(out)
    assert [row.final_accuracy for row in again.rows()] == [row.final_accuracy for row in expected.rows()]
    assert again.to_dict()["rows"][0]["rounds_to"] == expected.to_dict()["rows"][0]["rounds_to"]


def test_a_comparison_may_be_extended(tmp_path: Path) -> None:
    compare("fedavg", {**SMALL, "rounds": 2}, out=tmp_path / "out")
    longer = resume_comparison(tmp_path / "out", rounds=4)
    assert longer.runs[0].summary.rounds == 4
    assert resume_comparison(tmp_path / "out").runs[0].summary.rounds == 4


# -- signals ------------------------------------------------------------------------------------------------------------


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    import signal

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
        assert not stop.asked
    finally:
        signal.signal(signal.SIGTERM, before)


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone() -> None:
    from threading import Thread

    seen: list[bool] = []

    def enter() -> None:
        with stop_on_signal() as stop:
            seen.append(stop.asked)

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [False]
