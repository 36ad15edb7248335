"""Bad input, through Python and through the command line: one clear sentence, exit code 2, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedvra as fv
from fedvra.cli import main

# -- the command line ---------------------------------------------------------------------------------------------------

RUN = ["run", "digits", "--workers", "1", "--rounds", "2"]
COMPARE = ["compare", "digits", "--workers", "1", "--rounds", "2"]

COMMANDS = {
    "unknown command": (["rnu"], "there is no command 'rnu': did you mean 'run'?"),
    "unknown task": (["run", "digitz"], "there is no task 'digitz': did you mean 'digits'?"),
    "unknown option": ([*RUN, "--round", "3"], "'--rounds'"),
    "unknown algorithm": ([*RUN, "--algorithm", "fedvrra"], "there is no algorithm 'fedvrra': did you mean 'fedvra'?"),
    "unknown hyper-parameter": ([*RUN, "--set", "gama=1"], "did you mean 'gamma'?"),
    "unknown sampler": ([*RUN, "--sampler", "unifrom"], "there is no sampler 'unifrom': did you mean 'uniform'?"),
    "unknown split": (
        [*RUN, "--split", "dirichelt:0.2"],
        "there is no partition 'dirichelt': did you mean 'dirichlet'?",
    ),
    "unknown model": ([*RUN, "--model", "lineer"], "there is no model 'lineer': did you mean 'linear'?"),
    "unknown engine": ([*RUN, "--engine", "lokal"], "did you mean 'local'?"),
    "unknown data set": (["data", "get", "minst"], "there is no data set 'minst': did you mean 'mnist'?"),
    "unknown in a comparison": ([*COMPARE, "--algorithms", "fedvra,fedavgg"], "did you mean 'fedavg'?"),
    "no task": (["run"], "say which task to run"),
    "m > N": ([*RUN, "--cohort", "51"], "m = 51 is more than the number of clients, 50"),
    "p > 1": ([*RUN, "--sampler", "bernoulli:1.5"], "p must be in (0, 1], got 1.5"),
    "p = 0": ([*RUN, "--sampler", "bernoulli:0"], "p must be in (0, 1], got 0"),
    "negative steps": ([*RUN, "--steps", "-5"], "steps must be at least 1, got -5"),
    "negative rounds": ([*RUN, "--rounds", "-1"], "rounds must be at least 0, got -1"),
    "gamma*lr > 1": ([*RUN, "--set", "gamma=30"], "gamma*lr must not exceed 1"),
    "gamma*lr > 1 in a comparison": (
        [*COMPARE, "--algorithms", "fedavg,feddyn:alpha=30"],
        "gamma*lr must not exceed 1",
    ),
    "negative gamma": ([*RUN, "--set", "gamma=-1"], "gamma must be >= 0, got -1"),
    "not a number": ([*RUN, "--lr", "fast"], "lr must be a number, got 'fast'"),
    "epochs and steps": ([*RUN, "--epochs", "1", "--steps", "5"], "give one of the two"),
    "empty clients": ([*RUN, "--clients", "5000"], "5000 clients cannot hold 1 or more samples each"),
    "full participation": ([*RUN, "--algorithm", "fedpd"], "FedPD is defined for full participation"),
    "lost replies": ([*RUN, "--algorithm", "vrlsgd", "--sampler", "full", "--drop", "0.1"], "leave drop at 0"),
    "a model that does not fit": ([*RUN, "--model", "cnn"], "at least 16 x 16 pixels"),
    "weights of other length": ([*RUN, "--weights", "1,2,3"], "50 clients need as many weights"),
    "no such config file": (["run", "--config", "none.yaml"], "the config file none.yaml cannot be read"),
    "bad seeds": ([*COMPARE, "--seeds", "zero"], "seeds must be whole numbers"),
    "negative seed": ([*RUN, "--seed", "-1"], "seed must be at least 0"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = COMMANDS[case]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [RUN, COMPARE], ids=["run", "compare"])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("used", "is already in use"),
        ("file", "is a file"),
        ("file/below", "name another"),
        ("/proc/none", "name another"),
    ],
)
def test_output_folders(verb: list[str], place: str, message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("used").mkdir()
    Path("used/mine").write_text("precious")
    Path("file").write_text("precious")
    result = CliRunner().invoke(main, [*verb, "--out", place])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "used"]
    assert Path("used/mine").read_text() == Path("file").read_text() == "precious"


# -- Python -------------------------------------------------------------------------------------------------------------

INPUTS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
LABELS = np.arange(60) % 3
MODEL = torch.nn.Linear(4, 3)


def simulate(**changes: Any) -> fv.History:
    given: dict[str, Any] = {
        "algorithm": fv.FedVRA(),
        "problem": fv.Supervised(MODEL),
        "data": fv.split((INPUTS, LABELS), fv.IID(), clients=6),
        "sampler": fv.Uniform(2),
        "work": fv.Steps(2),
        "rounds": 1,
        "workers": 1,
        **changes,
    }
    return fv.simulate(given.pop("algorithm"), **given)


def split(inputs: Any = INPUTS, labels: Any = LABELS, **options: Any) -> Any:
    return fv.split((inputs, labels), options.pop("partition", fv.IID()), **{"clients": 6, **options})


def with_nan() -> Any:
    inputs = INPUTS.copy()
    inputs[7, 2] = np.nan
    return inputs


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "m > N": (lambda: simulate(sampler=fv.Uniform(7)), "m = 7 is more than the number of clients, 6"),
    "m = 0": (lambda: simulate(sampler=fv.Uniform(0)), "must be at least 1"),
    "p > 1": (lambda: simulate(sampler=fv.Bernoulli(1.2)), r"must be in \(0, 1\]"),
    "p = 0": (lambda: simulate(sampler=fv.Bernoulli([0.5, 0, 1, 1, 1, 1])), r"must be in \(0, 1\], got 0 for client 1"),
    "negative steps": (lambda: simulate(work=fv.Steps(-1)), "at least 0, got -1"),
    "negative epochs": (lambda: simulate(work=fv.Epochs(-1)), "must be at least 1, got -1"),
    "negative rounds": (lambda: simulate(rounds=-1), "rounds must be at least 0"),
    "half a round": (lambda: simulate(rounds=2.5), "rounds must be a whole number"),
    "a class": (lambda: simulate(algorithm=fv.FedVRA), r"such as fv.FedVRA\(\), got the class FedVRA"),
    "the name of an algorithm": (lambda: simulate(algorithm="fedvra"), r"fv.FedVRA\(\), got an object of type str"),
    "a bare model": (lambda: simulate(problem=MODEL), r"problem must be an object such as fv.Supervised\(model\)"),
    "a bare cohort size": (lambda: simulate(sampler=3), r"sampler must be an object such as fv.Uniform\(10\)"),
    "bare epochs": (lambda: simulate(work=2), r"work must be an object such as fv.Epochs\(2\)"),
    "a class of partitions": (
        lambda: fv.split((INPUTS, LABELS), fv.IID, clients=6),  # type: ignore[arg-type]
        r"must be an object such as fv.Dirichlet\(0.2\), got <class",
    ),
    "no name of a partition": (
        lambda: fv.split((INPUTS, LABELS), "idd", clients=6),
        "there is no partition 'idd': did you mean 'iid'",
    ),
    "gamma*lr > 1": (lambda: simulate(algorithm=fv.FedVRA(gamma=200)), r"gamma\*lr must not exceed 1 \(it is 2\)"),
    "negative gamma": (lambda: fv.FedVRA(gamma=-0.1), "gamma must be >= 0"),
    "lr = 0": (lambda: simulate(lr=0), "the learning rate must be > 0"),
    "empty clients": (lambda: split(clients=61), "61 clients cannot hold 1 or more samples each"),
    "labels too large": (lambda: split(classes=2), r"labels run from 0 to 2, outside 0..1"),
    "negative labels": (lambda: split(labels=LABELS - 1), "labels run from -1"),
    "NaN in data": (lambda: split(with_nan()), r"hold NaN or infinity in 1 of 60 samples \(first: sample 7\)"),
    "lengths that differ": (lambda: split(labels=LABELS[:-1]), "60 inputs and 59 targets"),
    "a model for other inputs": (
        lambda: simulate(problem=fv.Supervised(torch.nn.Linear(5, 3))),
        "the model does not fit the data: inputs of shape",
    ),
    "a model for fewer classes": (
        lambda: simulate(problem=fv.Supervised(torch.nn.Linear(4, 2), loss=lambda y, t: y.mean())),
        "the model gives 2 outputs, but the data has 3 classes",
    ),
    "BatchNorm": (
        lambda: simulate(problem=fv.Supervised(torch.nn.Sequential(torch.nn.BatchNorm1d(4), MODEL))),
        "layer '?0'? .BatchNorm1d. keeps statistics that training changes",
    ),
    "full participation": (lambda: simulate(algorithm=fv.FedPD()), "defined for full participation"),
    "weights": (lambda: simulate(weights=[1, 2]), "6 clients need as many weights"),
    "drop": (lambda: simulate(drop=1.0), "drop must be a probability"),
    "batch size": (lambda: simulate(batch_size=0), "batch_size must be >= 1"),
    "workers": (lambda: simulate(workers=0), "workers must be 'auto' or a number >= 1"),
    "x_init": (lambda: simulate(x_init=torch.zeros(3)), "x_init has shape"),
}


@pytest.mark.parametrize("case", CALLS)
def test_python(case: str) -> None:
    call, message = CALLS[case]
    with pytest.raises(fv.UsageError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_what_is_not_refused() -> None:
    """The cases above differ from a run that works in one thing each."""
    assert len(simulate().metrics) == 1


def test_divergence_names_the_round_and_the_knob() -> None:
    with pytest.raises(fv.DivergedError, match=r"FedVRA diverged in round \d+: .*try a smaller a or d or lr") as end:
        simulate(algorithm=fv.FedVRA(a=1e6), rounds=200)
    assert 1 <= end.value.round < 200
