"""Runs that are killed, interrupted or out of disk space, in processes of their own, come to what they would have come to."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from crashes import Child, lines, outcome
from fedvra.cli import main
from fedvra.runs.config import configure
from fedvra.runs.files import Record, RunFolder
from fedvra.state.durable import WRITING, intact_snapshots
from fedvra.studies.execution import execute

OPTIONS = {
    "task": "digits",
    "clients": 20,
    "cohort": 5,
    "steps": 1,
    "model": "linear",
    "eval_every": 20,
    "checkpoint_every": 2,
    "drop": 0.1,
}


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Children are forked: what is loaded and prepared here need not be in each of them."""
    undisturbed(tmp_path_factory.mktemp("warm") / "run", rounds=1)


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing who holds what takes longer than these runs."""
    monkeypatch.setattr("fedvra.studies.execution.picture", lambda data, path: None)


def undisturbed(path: Path, **changes: object) -> tuple[list[Record], dict[str, bytes]]:
    """What the run comes to without a stop."""
    execute(configure({**OPTIONS, "workers": 1, **changes, "checkpoint_every": 0}), path)
    return outcome(path)


def started(folder: RunFolder, workers: int = 1, **changes: object) -> Child:
    """A run that will not come to its end before something else happens."""
    options = {**OPTIONS, "rounds": 1_000_000, "workers": workers, "out": folder.path, **changes}
    task = str(options.pop("task"))
    named = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return Child("run", task, *named, log=folder.path.with_name("log"))


def resumed(folder: RunFolder, *options: object) -> Child:
    return Child("resume", folder.path, *map(str, options), log=folder.path.with_name("log"))


def assert_goes_on(folder: RunFolder, **changes: object) -> None:
    """Resumed, the run comes to what it would have come to without a stop."""
    rounds = lines(folder) + 7
    last = resumed(folder, "--workers=2", f"--rounds={rounds}")
    assert last.wait() == 0, last.said()
    assert folder.summary().status == "finished"
    assert outcome(folder.path) == undisturbed(folder.path.with_name("expected"), rounds=rounds, **changes)


def saved_rounds(folder: RunFolder) -> list[int]:
    """Of the intact checkpoints, newest first; a damaged one would be a warning, which is an error here."""
    return [manifest["round"] for _, manifest in intact_snapshots(folder.checkpoints)]


# -- SIGKILL ------------------------------------------------------------------------------------------------------------


def test_killed_at_twenty_moments_and_more(tmp_path: Path) -> None:
    folder, rng = RunFolder(tmp_path / "run"), np.random.default_rng(0)
    kills = torn = 0
    while kills < 20 or (torn < 3 and kills < 100):
        workers, before, played = 1 + kills % 2, being_written(folder), lines(folder)
        begun = folder.config_file.exists()
        child = resumed(folder, f"--workers={workers}") if begun else started(folder, workers)
        if kills % 4 == 0:
            time.sleep(rng.uniform(0, 0.3))  # whatever it is at then
        elif kills % 4 == 1:
            child.until(lambda played=played: lines(folder) != played)
            time.sleep(rng.uniform(0, 0.05))
        else:
            child.until(lambda before=before: being_written(folder) - before)
        child.kill()
        kills += 1
        torn += bool(being_written(folder) - before)
    assert torn >= 3, "too few of the kills hit a checkpoint that was being written"
    assert_goes_on(folder)
    assert not being_written(folder)


def being_written(folder: RunFolder) -> set[tuple[str, int]]:
    """Checkpoints that are, or were when their writer was killed."""
    found = set()
    for path in folder.checkpoints.glob(f"{WRITING}*"):
        with suppress(FileNotFoundError):  # renamed in between
            found.add((path.name, path.stat().st_ctime_ns))
    return found


# -- Ctrl-C -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGINT, 1)])
def test_a_first_signal_finishes_the_round(number: signal.Signals, workers: int, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    child = started(folder, workers, checkpoint_every=0)
    child.until(lambda: lines(folder) > 3)
    child.signal(number)
    assert child.wait() == 1
    stopped = lines(folder)
    assert "Stopping when this round is over; once more stops at once." in child.said()
    message = f"Error: interrupted after round {stopped}; resume with `fedvra resume {folder.path}`."
    assert child.said().strip().endswith(message)
    assert (folder.summary().status, folder.summary().rounds) == ("interrupted", stopped)
    assert saved_rounds(folder) == [stopped]
    assert_goes_on(folder)


def test_a_second_signal_stops_at_once_and_saves_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    child = started(folder, steps=200_000)
    child.until(lambda: catches(child.pid, signal.SIGTERM))  # from the start of the first round on, which takes long
    child.signal(signal.SIGTERM)
    child.until(lambda: "Stopping when this round is over" in child.said())
    child.signal(signal.SIGTERM)
    assert child.wait() == 1
    assert child.said().strip().endswith("Error: interrupted; what was written so far stays readable.")
    assert (folder.summary().status, folder.summary().rounds) == ("interrupted", 0)
    assert saved_rounds(folder) == []


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


# -- two processes ------------------------------------------------------------------------------------------------------


def test_a_folder_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    first = started(folder, steps=20_000)
    first.until(lambda: catches(first.pid, signal.SIGTERM))
    first.kill()
    child = resumed(folder, "--workers=2")  # forks its workers, which are busy for seconds, when the folder is its own
    child.until(lambda: catches(child.pid, signal.SIGTERM))
    second = CliRunner().invoke(main, ["resume", str(folder.path)])
    assert second.exit_code == 2
    assert second.stdout == ""
    at_work = (
        f"Error: another process ({child.pid}) is at work in {folder.path}: wait until it ends, or stop it first.\n"
    )
    assert second.stderr == at_work
    third = CliRunner().invoke(main, ["run", "digits", "--out", str(folder.path)])
    assert third.exit_code == 2
    assert third.stderr.startswith(f"Error: the folder {folder.path} is already in use")
    assert child.alive()
    child.kill()
    with folder.locked():  # free at once, whatever becomes of its workers
        pass


# -- a full disk --------------------------------------------------------------------------------------------------------


def fill_disk(child: Child, most: int) -> None:
    """From now on the child cannot make any file larger than this: the system's own way of refusing to write."""
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most, most))


def test_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    larger = {"model": "mlp", "sampler": "full", "cohort": 20}  # all there will be of state is there after two rounds
    child = started(folder, **larger)
    child.until(lambda: lines(folder) > 4)
    fill_disk(child, 100_000)
    assert child.wait() == 1
    error = child.said().strip().splitlines()[-1]
    assert error.startswith("Error: the checkpoint of round")
    assert error.endswith("(File too large): free some space and resume; earlier checkpoints are intact.")
    assert folder.summary().status == "failed"
    assert len(saved_rounds(folder)) == 2
    assert not being_written(folder)
    assert_goes_on(folder, **larger)


def test_no_room_for_a_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    child = started(folder, checkpoint_every=0)
    child.until(lambda: lines(folder) > 3)
    room = folder.metrics_file.stat().st_size + 50_000
    fill_disk(child, room)
    assert child.wait() == 1
    error = child.said().strip().splitlines()[-1]
    goes_on = f"free some space, then `fedvra resume {folder.path}`."
    assert error == f"Error: {folder.path} cannot be written to (File too large): {goes_on}"
    assert folder.metrics_file.stat().st_size == room, "the last line should be one that was cut short"
    assert_goes_on(folder)


def test_no_room_for_client_state(tmp_path: Path) -> None:
    """Refused when the file that is to hold it is made, not row by row in the middle of a round."""
    child = started(RunFolder(tmp_path / "run"), state_memory=0, model="mlp")
    fill_disk(child, 10_000)
    assert child.wait() == 1
    assert "of client state in" in child.said()
    assert "(File too large): free some space or put the state elsewhere." in child.said()
