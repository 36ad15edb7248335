"""A run of one's own objects in a folder: the same bits, resumed after anything, refused where something else is meant."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedvra as fv
from crashes import lines, untimed
from every_object import Shared
from fedvra.cli import main
from fedvra.engines import fingerprint
from fedvra.runs.config import configure, read_config
from fedvra.runs.files import RunFolder
from quadratics import quadratic

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(240, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > INPUTS[:, 1]).astype(np.int64)
TEST = (INPUTS[:40], LABELS[:40])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def split(inputs: Any = INPUTS, seed: int = 0, test: Any = TEST) -> fv.FederatedData:
    return fv.split((inputs, LABELS), fv.Dirichlet(1.0), clients=8, seed=seed, test=test)


def simulate(out: Path | None, **changes: Any) -> fv.History:
    usual: dict[str, Any] = {
        "problem": fv.Supervised(net), "data": split(), "sampler": fv.Uniform(3), "work": fv.Epochs(1), "lr": 0.1,
        "batch_size": 10, "rounds": 8, "workers": 1, "checkpoint_every": 3, "keep": "x0",
    }  # fmt: skip
    return fv.simulate(**{"algorithm": fv.FedVRA(), **usual, **changes}, out=out)


class StopError(Exception):
    pass


def stop_after(round: int) -> Any:
    def look(record: dict[str, Any]) -> None:
        if record["round"] == round:
            raise StopError

    return look


def same(a: fv.History, b: fv.History) -> bool:
    assert a.trajectory is not None
    assert b.trajectory is not None
    equal = torch.equal(a.x0, b.x0) and torch.equal(a.trajectory, b.trajectory) and dict(a.duals) == b.duals
    return equal and untimed(a.metrics) == untimed(b.metrics)


@pytest.mark.parametrize("stopped", [None, 1, 5])
def test_a_folder_changes_no_bit(stopped: int | None, tmp_path: Path) -> None:
    plain, out = simulate(None), tmp_path / "mine"
    if stopped is not None:
        with pytest.raises(StopError) as caught:
            simulate(out, progress=stop_after(stopped))
        assert len(caught.value.history.metrics) == stopped  # type: ignore[attr-defined]
    assert same(simulate(out), plain)
    assert {"config.yaml", "metrics.jsonl", "summary.json", "report.html", "checkpoint", "partition.png"} <= {
        file.name for file in out.iterdir()
    }
    assert RunFolder(out).summary().status == "finished"


def test_a_finished_run_is_returned_and_may_go_on(tmp_path: Path) -> None:
    first = simulate(tmp_path / "mine")
    again = simulate(tmp_path / "mine", progress=stop_after(1))  # which no round reaches
    assert again.metrics == first.metrics  # times and all
    assert same(again, first)
    assert isinstance(again.model(), nn.Sequential)
    assert same(simulate(tmp_path / "mine", rounds=10), simulate(None, rounds=10))


def _child(out: Path) -> None:
    os.setpgid(0, 0)
    simulate(out, workers=2, progress=lambda record: time.sleep(0.02))


def test_a_run_survives_sigkill(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    process = multiprocessing.get_context("fork").Process(target=_child, args=(out,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    deadline = time.monotonic() + 60
    while lines(RunFolder(out)) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not RunFolder(out).summary_file.exists()
    assert same(simulate(out), simulate(None))


def frozen_net() -> nn.Module:
    made = net()
    made[0].requires_grad_(False)  # type: ignore[operator]
    return made


def other_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "shape": (
        {"problem": fv.Supervised(lambda: nn.Linear(4, 2))},
        "another model: it has 0.weight and this one has weight",
    ),
    "frozen": ({"problem": fv.Supervised(frozen_net)}, "requires_grad of 0.weight was True and is now False"),
    "double": (
        {"problem": fv.Supervised(lambda: net().double())},
        "dtype of 0.weight was torch.float32 and is now torch.float64",
    ),
    "what it computes": ({"problem": fv.Supervised(other_net)}, "another loss, model or data: on the same 64 samples"),
    "loss": (
        {"problem": fv.Supervised(net, loss=nn.CrossEntropyLoss(label_smoothing=0.05))},
        r"the loss was 0\.\d+ and is now 0\.\d+",
    ),
    "data": ({"data": split(INPUTS + 1)}, "another data set: some of its 240 samples are not the same"),
    "test data": ({"data": split(test=(TEST[0][1:], TEST[1][1:]))}, "other test data, 40 samples where these are 39"),
    "split": ({"data": split(seed=1)}, "another split: the clients hold other samples"),
    "lr": ({"lr": 0.2}, "holds a run with lr 0.1, and this one has 0.2"),
    "algorithm": ({"algorithm": fv.FedAvg()}, "holds a run with algorithm fedvra, and this one has fedavg"),
    "fewer rounds": ({"rounds": 4}, "at round 8 already: rounds must be at least that"),
    "a problem": (
        {"problem": fv.Quadratic(*quadratic(8, 3)), "data": None, "batch_size": None},
        "holds a run with batch_size 10, and this one has full",
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mine"
    simulate(out)
    return out


@pytest.mark.parametrize("name", OTHERS)
def test_something_else_is_refused(name: str, finished: Path) -> None:
    changes, message = OTHERS[name]
    before = written(finished)
    with pytest.raises(fv.UsageError, match=message):
        simulate(finished, **changes)
    assert written(finished) == before


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != ".lock"}


def test_another_processor_is_the_same_run() -> None:
    """Last digits may differ; what another loss changes may not."""
    stored = {"cost": 0.5, "slope": 0.01}
    fingerprint.require_same_probe(stored, {"cost": 0.50001, "slope": 0.010001}, torch.float32, "runs/mine")
    for other in ({"cost": 0.51, "slope": 0.01}, {"cost": 0.5, "slope": 0.0103}):
        with pytest.raises(fv.UsageError, match="runs/mine holds a run with another loss"):
            fingerprint.require_same_probe(stored, other, torch.float32, "runs/mine")
    with pytest.raises(fv.UsageError, match="another loss"):
        fingerprint.require_same_probe(stored, {"cost": 0.50001, "slope": 0.01}, torch.float64, "runs/mine")


@dataclass(frozen=True)
class Unregistered(fv.FedAvg):
    name: ClassVar[str] = "unregistered"
    label: ClassVar[str] = "Nobody's"


def halving(cohort: fv.Cohort) -> float:
    return 0.1 * 0.5**cohort.round


def test_what_cannot_be_written_down_is_described(tmp_path: Path) -> None:
    changes = {
        "algorithm": Unregistered(),
        "lr": halving,
        "sampler": fv.Replay([[0, 1]] * 8),
        "weights": np.arange(1, 9),
    }
    simulate(tmp_path / "mine", **changes)
    folder = RunFolder(tmp_path / "mine")
    config = folder.config()
    assert (config.algorithm, config.lr, config.model) == ("Nobody's", "halving", "net")
    assert config.sampler.startswith("Replay(")
    assert {"algorithm", "lr", "sampler", "model"} <= set(config.python or ())
    assert configure(read_config(folder.config_file)) == config
    assert "Nobody" in (folder.path / "report.html").read_text()
    assert folder.summary().label == "Nobody's"
    simulate(tmp_path / "mine", **changes)  # which is known again


PROBLEMS: dict[str, dict[str, Any]] = {
    "quadratic": {"problem": fv.Quadratic(*quadratic(8, 3)), "data": None, "batch_size": None},
    "two blocks": {"problem": Shared(torch.ones(8, 3)), "data": None, "batch_size": None, "algorithm": fv.FedVRAU()},
    "pseudo-labels": {"problem": fv.SemiSupervised(net, hidden=0.5), "algorithm": fv.FedVRAU()},
    "statistics": {
        "problem": fv.Supervised(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), buffers="average"),
        "drop_last": True,
    },
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_any_problem_can_be_resumed(name: str, tmp_path: Path) -> None:
    changes = PROBLEMS[name]
    with pytest.raises(StopError):
        simulate(tmp_path / "mine", progress=stop_after(5), **changes)
    assert same(simulate(tmp_path / "mine", **changes), simulate(None, **changes))


def test_a_run_that_diverged_stays_so(tmp_path: Path) -> None:
    changes = {"problem": fv.Quadratic(1e30 * torch.ones(8, 1, 1), torch.ones(8, 1)), "data": None, "batch_size": None}
    for _ in range(2):
        with pytest.raises(fv.DivergedError, match="no longer finite"):
            simulate(tmp_path / "mine", algorithm=fv.FedAvg(), lr=1e9, **changes)
    assert RunFolder(tmp_path / "mine").summary().status == "diverged"


def test_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(None, rounds=1)
    assert capsys.readouterr().out == ""
    simulate(None, rounds=2, progress=True)
    shown = capsys.readouterr().out
    assert "round 1/2" in shown
    assert "FedVRA, seed 0: final" in shown
    simulate(None, rounds=1, progress=False)
    assert capsys.readouterr().out == ""


def test_trackers_need_a_folder_and_get_one(tmp_path: Path) -> None:
    with pytest.raises(fv.UsageError, match="track needs a folder to work in: say out='runs/mine'"):
        simulate(None, track="tensorboard")
    pytest.importorskip("tensorboard")
    simulate(tmp_path / "mine", track="tensorboard", targets=[60, "test_loss=0.6"])
    assert list((tmp_path / "mine").rglob("events.out.tfevents*"))
    assert list(RunFolder(tmp_path / "mine").summary().rounds_to) == ["60", "test_loss=0.6"]


def test_the_command_line_beside_it(finished: Path) -> None:
    def said(*args: str) -> str:
        result = CliRunner().invoke(main, list(args))
        assert result.exit_code == 2, result.output
        return str(result.output)

    assert f"continue what is in it with `fedvra resume {finished}`" in said("run", "digits", "--out", str(finished))
    for args in (["resume", str(finished), "--rounds", "9"], ["run", "--config", str(finished / "config.yaml")]):
        assert "was made of Python objects (task, " in said(*args)
    assert CliRunner().invoke(main, ["report", str(finished), "--out", str(finished / "again.html")]).exit_code == 0
    (finished / "again.html").unlink()


def test_a_task_of_ones_own_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = (
        "import torch, numpy as np, fedvra as fv\nx = np.random.default_rng(0).normal(size=(60, 4)).astype('f')\n"
        "def task(options):\n"
        "    data = fv.split((x, x[:, :1]), 'iid', options.clients, options.seed)\n"
        "    return fv.Supervised(lambda: torch.nn.Linear(4, 1), loss=torch.nn.functional.mse_loss), data\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(task)
    small = ["--clients", "6", "--cohort", "2", "--rounds", "2", "--workers", "1", "--out", "runs/mine"]
    assert CliRunner().invoke(main, ["run", "mine.py:task", *small]).exit_code == 0
    Path("mine.py").write_text(task.replace("mse_loss", "l1_loss"))
    os.utime("mine.py", ns=(1, 1))
    result = CliRunner().invoke(main, ["resume", "runs/mine", "--rounds", "3"])
    assert result.exit_code == 2
    assert "another loss, model or data" in result.output
