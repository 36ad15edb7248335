"""Semi-supervised learning in the engine and as tasks: workers, paths, checkpoints, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from crashes import untimed
from fedvra.engines import checkpoint
from fedvra.engines.federation import Experiment, Federation
from fedvra.local.protocol import SolverSettings
from fedvra.models import MODELS
from fedvra.runs.config import configure
from fedvra.tasks import TASKS
from few_labels import (
    CLASSES,
    FEATURES,
    SETTINGS,
    linear,
    network,
    objective,
    project_rows,
    slopes,
    small_data,
    unknown_of,
)

# --- The engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["eager", "traced", "block"])
def test_workers_do_not_change_a_bit(path: str) -> None:
    data, problem = (
        small_data(clients=9, dtype=torch.float32),
        fv.SemiSupervised(network, hidden=0.8, weight_decay=1e-3),
    )
    settings = {**SETTINGS, "sampler": fv.Uniform(5), "drop": 0.2, "solver": SolverSettings(path=path)}
    runs = [
        fv.simulate(fv.FedVRAU(gamma=0.3), problem=problem, data=data, rounds=4, **{**settings, "workers": w})
        for w in (1, 2)
    ]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert untimed(runs[0].metrics) == untimed(runs[1].metrics)
    assert all(torch.equal(row, runs[1].y[i]) for i, row in runs[0].y.items())


def test_paths_agree() -> None:
    data, problem = small_data(clients=9, dtype=torch.float32), fv.SemiSupervised(network, hidden=0.8)
    x0 = {
        path: fv.simulate(
            fv.FedVRAU(), problem=problem, data=data, rounds=4, **SETTINGS, solver=SolverSettings(path=path)
        ).x0
        for path in ("eager", "traced", "block")
    }
    assert torch.allclose(x0["eager"], x0["traced"], atol=1e-5)
    assert torch.allclose(x0["eager"], x0["block"], atol=1e-5)


def test_a_checkpoint_carries_the_pseudo_labels(tmp_path: Path) -> None:
    data, problem = small_data(), fv.SemiSupervised(linear(), hidden=0.8, lr_y=0.4)
    settings = {k: v for k, v in SETTINGS.items() if k != "workers"}

    def start() -> Federation:
        return Federation(Experiment(fv.FedVRAU(), problem, data=data, **settings), workers=1)

    whole, first, second = start(), start(), start()
    try:
        records = [whole.round() for _ in range(6)]
        for _ in range(3):
            first.round()
        checkpoint.save(first, tmp_path)
        assert checkpoint.restore(second, tmp_path) == 3
        again = [second.round() for _ in range(3)]
        assert torch.equal(second.state.x0, whole.state.x0)
        assert again[-1]["pseudo_entropy"] == records[-1]["pseudo_entropy"]
        ours, theirs = second.second_block(), whole.second_block()
        assert all(torch.equal(ours[i], theirs[i]) for i in theirs)
    finally:
        for federation in (whole, first, second):
            federation.close()


def test_the_global_model_stays_in_its_set() -> None:
    model = linear()
    sets = fv.Product.of_parameters(model, {"weight": fv.Box(-0.2, 0.2), "bias": fv.Ball(0.1)})
    problem = fv.SemiSupervised(model, hidden=0.8, constraint=sets)
    x0 = fv.simulate(fv.Scaffold(), problem=problem, data=small_data(), rounds=4, **SETTINGS).x0
    assert sets.contains(x0)
    assert float(x0[:15].abs().max()) == pytest.approx(0.2)


def test_power_of_choice_ranks_clients_by_the_objective() -> None:
    data, problem = small_data(), fv.SemiSupervised(linear(), hidden=0.8)
    settings = {**SETTINGS, "sampler": fv.PowerOfChoice(2, candidates=4)}
    record = fv.simulate(fv.FedAvg(), problem=problem, data=data, rounds=1, **settings).metrics[0]
    x0, costs = problem.initial(3), []
    for i in range(4):
        y = torch.full((len(unknown_of(problem, data, i)), CLASSES), 1 / CLASSES, dtype=torch.float64)
        step = y - len(y) * slopes(problem, data, i, x0, y)[1]
        costs.append(float(objective(problem, data, i, x0, torch.tensor(project_rows(step.numpy())))))
    assert record["cohort"] == sorted(np.argsort(costs)[-2:].tolist())


def test_buffers_follow_the_policy() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))

    data = small_data(dtype=torch.float32)
    with pytest.raises(fv.UsageError, match="BatchNorm1d"):
        fv.simulate(fv.FedAvg(), problem=fv.SemiSupervised(model), data=data, rounds=1, **SETTINGS)
    history = fv.simulate(
        fv.FedAvg(), problem=fv.SemiSupervised(model, buffers="average"), data=data, rounds=2, **SETTINGS
    )
    assert history.aux is not None
    assert history.y


# --- Tasks and what they are for ---------------------------------------------------------------------------------------


def test_tasks_and_their_references_are_known() -> None:
    for name in ("digits", "mnist", "cifar10"):
        assert {f"{name}-ssl", f"{name}-ssl-labelled", f"{name}-ssl-all"} <= set(TASKS.names())
    mnist, cifar = (configure({"task": f"{name}-ssl"}) for name in ("mnist", "cifar10"))
    assert mnist.algorithm == cifar.algorithm == "fedvra-u"
    assert (mnist.set["gamma"], mnist.set["a"], mnist.set["d"], mnist.batch_size) == (0.5, 5, 15, 32)
    assert (cifar.set["gamma"], cifar.set["a"], cifar.set["d"], cifar.model) == (0.1, 7, 15, "cnn")
    assert configure({"task": "mnist-ssl-labelled"}).steps == 38


def test_unlabelled_samples_help() -> None:
    """digits-ssl: pseudo-labels gain most of what hiding nine of ten labels lost."""
    data = fv.split(fv.load("digits"), fv.Dirichlet(0.2), clients=20, seed=0)
    problem = fv.SemiSupervised(partial(MODELS.get("mlp"), (1, 8, 8), 10), weight_decay=1e-3)
    settings: dict[str, Any] = {"sampler": fv.Uniform(5), "lr": 0.05, "batch_size": 16, "rounds": 80, "eval_every": 80}

    def accuracy(*given: Any, **options: Any) -> float:
        record = fv.simulate(*given, **settings, **options).metrics[-1]
        return float(record["test_accuracy"])

    ours = accuracy(fv.FedVRAU(gamma=0.5, a=2), problem=problem, data=data, work=fv.Epochs(2))
    few = accuracy(
        fv.FedVRA(gamma=0.5, a=2), problem=problem.supervised(), data=problem.labelled_part(data), work=fv.Steps(10)
    )
    assert ours > 0.94
    assert ours > few + 0.04


# --- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 1.5}, "hidden must be a share"),
        ({"mu": 0.0}, "mu must be > 0"),
        ({"tau": -1.0}, "tau must be >= 0"),
        ({"rho": 0.0}, "rho must be > 0"),
        ({"lr_y": 2.0}, "lr_y must be between 0 and 2"),
        ({"steps_y": 0}, "steps_y must be at least 1"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_parameters_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fv.UsageError, match=message):
        fv.SemiSupervised(linear(), **options)


def floats(data: fv.FederatedData) -> fv.FederatedData:
    return fv.split((data.dataset.inputs, data.dataset.inputs[:, :CLASSES]), fv.IID(), clients=4)


@pytest.mark.parametrize(
    ("options", "spoil", "message"),
    [
        ({"hidden": 1.0}, None, "no sample has a label"),
        ({"labelled": np.zeros(96, dtype=bool)}, None, "no sample has a label"),
        ({"labelled": np.ones(5, dtype=bool)}, None, "one boolean per sample, 96 in all"),
        ({"labelled": np.ones(96)}, None, "one boolean per sample"),
        ({"model": nn.Linear(FEATURES, 7).double()}, None, "one output per class"),
        ({"model": nn.Linear(2, CLASSES).double()}, None, "does not fit"),
        ({}, floats, "needs classes"),
        ({}, lambda data: data.dataset, "fv.split"),
    ],
)
def test_data_that_do_not_fit(options: dict[str, Any], spoil: Callable[[Any], Any] | None, message: str) -> None:
    data = small_data()
    problem = fv.SemiSupervised(**{"model": linear(), **options})
    with pytest.raises(fv.UsageError, match=message):
        fv.simulate(fv.FedVRAU(), problem=problem, data=spoil(data) if spoil else data, rounds=1, **SETTINGS)


def test_a_client_without_labels_takes_part_but_cannot_be_a_reference() -> None:
    data = small_data()
    mask = np.ones(96, dtype=bool)
    mask[data.part(2)] = False
    problem = fv.SemiSupervised(linear(), labelled=mask)
    settings = {**SETTINGS, "sampler": fv.Full()}
    history = fv.simulate(fv.FedVRAU(), problem=problem, data=data, rounds=3, **settings)
    assert len(problem.pseudo_labels(data, 2, history.y[2])[0]) == len(data.part(2))
    with pytest.raises(fv.UsageError, match="no label at all"):
        problem.labelled_part(data)
