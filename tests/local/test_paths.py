"""Three ways to take the same local steps: autograd, replayed one client at a time, replayed in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.local.protocol import SolverSettings
from fedvra.local.replay import CannotReplayError
from fedvra.local.solver import SupervisedSolver

CLIENTS = 12


def data(
    partition: fv.Partition, shape: tuple[int, ...] = (8,), transform: fv.Transform | None = None
) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    inputs = torch.as_tensor(rng.normal(size=(360, *shape)))
    targets = torch.as_tensor(rng.integers(0, 3, 360))
    return fv.split((inputs, targets), partition, clients=CLIENTS, seed=1, transform=transform)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def cnn() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    return nn.Sequential(*layers).double()


def run(
    path: str, algorithm: fv.Algorithm, model: nn.Module, split: fv.FederatedData, block: int | None = None, **changes
):
    settings = {"sampler": fv.Uniform(5), "work": fv.Epochs(2), "lr": 0.05, "batch_size": 8, "rounds": 3, "seed": 3}
    return fv.simulate(
        algorithm,
        problem=fv.Supervised(model, weight_decay=1e-2),
        data=split,
        workers=1,
        solver=SolverSettings(path=path, block=block),
        **{**settings, **changes},
    )


def agree(runs: list[fv.History]) -> None:
    for other in runs[1:]:
        assert torch.allclose(runs[0].x0, other.x0, rtol=0, atol=1e-12)
        assert torch.allclose(runs[0].lam, other.lam, rtol=0, atol=1e-12)
        for a, b in zip(runs[0].metrics, other.metrics, strict=True):
            assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-12)


RATES = [0.05, [0.05 + 0.001 * i for i in range(CLIENTS)]]
WORK = [fv.Steps(1), fv.Steps(3), fv.Epochs(2), fv.RandomEpochs(1, 3)]


@pytest.mark.parametrize("partition", [fv.IID(), fv.QuantitySkew(alpha=0.7)], ids=["equal sizes", "unequal sizes"])
@pytest.mark.parametrize("work", WORK, ids=str)
@pytest.mark.parametrize("lr", RATES, ids=["one rate", "a rate each"])
@pytest.mark.parametrize("algorithm", [fv.FedAvg(), fv.FedVRA(gamma=0.1, a=5), fv.Scaffold()], ids=lambda a: a.label)
def test_the_paths_agree_to_rounding(partition, work, lr, algorithm):
    split = data(partition)
    agree(
        [run(p, algorithm, mlp(), split, b, work=work, lr=lr) for p, b in (("eager", 1), ("traced", 1), ("block", 3))]
    )


ONE_STEP = [fv.FedVRA(gamma=0.1, a=[3.0 + k for k in range(CLIENTS)], d=4), fv.FedDyn(alpha=0.1), fv.FedNova()]


@pytest.mark.parametrize("memory", [None, 0], ids=["duals in memory", "duals on disk"])
@pytest.mark.parametrize("algorithm", [*ONE_STEP, fv.Scaffold(), fv.FedPD(gamma=0.1, skip=0.5)], ids=lambda a: a.label)
def test_one_step_from_x0_without_a_vector_per_client(algorithm, memory):
    changes = {"work": fv.Steps(1), "sampler": fv.Full(), "drop": 0.3, "rounds": 4, "memory_limit": memory}
    if isinstance(algorithm, fv.FedPD):
        changes["drop"] = 0.0
    split = data(fv.IID())
    one_by_one, together = (run(path, algorithm, mlp(), split, **changes) for path in ("eager", "block"))
    agree([one_by_one, together])
    assert sorted(one_by_one.duals) == sorted(together.duals)
    for client, dual in one_by_one.duals.items():
        assert torch.allclose(dual, together.duals[client], rtol=0, atol=1e-12)


def test_a_first_step_that_cannot_be_replayed_is_taken_as_any_other(monkeypatch):
    def refuse(*_):
        raise CannotReplayError("not from one point")

    split, changes = data(fv.IID()), {"work": fv.Steps(1), "sampler": fv.Full()}
    expected = run("eager", fv.FedVRA(gamma=0.1, a=5), mlp(), split, **changes)
    monkeypatch.setattr("fedvra.local.programs.trace_first", refuse)
    agree([expected, run("block", fv.FedVRA(gamma=0.1, a=5), mlp(), split, **changes)])


@pytest.mark.parametrize("block", [2, 4, 5, 16])
def test_the_size_of_the_blocks_changes_nothing_but_rounding(block):
    split = data(fv.IID())
    agree([run("block", fv.FedVRA(gamma=0.1, a=5), mlp(), split, b) for b in (3, block)])


def test_convolutions_and_augmentation():
    split = data(fv.IID(), (2, 8, 8), fv.Transform((0.1, 0.2), (0.9, 1.1), crop_padding=1, flip=True))
    agree([run(p, fv.FedVRA(gamma=0.1, a=5), cnn(), split, b) for p, b in (("eager", 1), ("traced", 1), ("block", 3))])


def test_clients_with_anchors_of_their_own():
    split, everyone = data(fv.IID()), fv.Full()
    runs = [
        run(p, fv.FedPD(gamma=0.5, skip=0.4), mlp(), split, b, sampler=everyone)
        for p, b in (("eager", 1), ("block", 4))
    ]
    agree(runs)


def test_a_penalty_of_each_clients_own():
    split = data(fv.IID())
    algorithm = fv.FedVRA(gamma=[0.05 + 0.01 * i for i in range(CLIENTS)], a=3)
    agree([run(p, algorithm, mlp(), split, b) for p, b in (("eager", 1), ("traced", 1), ("block", 3))])


class Branching(nn.Linear):
    """What it computes depends on what the data hold."""

    def __init__(self):
        super().__init__(8, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def solver_of(model: nn.Module, split: fv.FederatedData, **settings) -> SupervisedSolver:
    return SupervisedSolver(fv.Supervised(model, buffers="average"), split, SolverSettings(batch_size=8, **settings))


def test_the_path_follows_from_the_model():
    images = data(fv.IID(), (2, 8, 8))
    dropout = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    norm = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)).double()
    assert solver_of(mlp(), data(fv.IID())).path.name == "block"
    assert solver_of(cnn(), images).path.name == "traced"
    assert solver_of(nn.Linear(8, 70_000).double(), data(fv.IID())).path.name == "traced"
    for model, path, reason in (
        (dropout, "traced", "random"),
        (norm, "traced", ""),
        (Branching(), "eager", "__bool__"),
    ):
        solver = solver_of(model, data(fv.IID()))
        assert solver.path.name == path
        assert reason in solver.path.reason


@pytest.mark.filterwarnings("ignore:this processor has no native bfloat16")
def test_bfloat16_arithmetic_stays_near_float32():
    torch.manual_seed(0)
    model, split = mlp().float(), data(fv.IID())
    runs = [
        fv.simulate(
            fv.FedVRA(gamma=0.1, a=5),
            problem=fv.Supervised(model),
            data=split,
            sampler=fv.Uniform(5),
            work=fv.Epochs(2),
            lr=0.05,
            batch_size=8,
            rounds=3,
            workers=1,
            solver=SolverSettings(precision=precision),
        )
        for precision in ("float32", "bfloat16")
    ]
    moved = (runs[0].x0 - fv.Supervised(model).initial(0)).norm()
    apart = (runs[0].x0 - runs[1].x0).norm()
    assert 0 < float(apart / moved) < 0.05
    assert runs[1].x0.dtype == torch.float32


@pytest.mark.parametrize("settings", [{"path": "fast"}, {"precision": "float8"}], ids=str)
def test_unknown_paths_and_precisions_are_refused(settings):
    with pytest.raises(fv.UsageError, match="must be one of"):
        solver_of(mlp(), data(fv.IID()), **settings)


def test_a_device_that_is_not_there_is_refused_by_name():
    with pytest.raises(fv.UsageError, match="device 'cuda:7' cannot be used here"):
        fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(mlp()),
            data=data(fv.IID()),
            sampler=fv.Uniform(2),
            work=fv.Steps(1),
            rounds=1,
            solver=SolverSettings(device="cuda:7"),
        )


@pytest.mark.parametrize("make", [mlp, cnn])
def test_evaluation_in_pieces_is_the_evaluation_of_the_whole(make: Callable[[], nn.Module]) -> None:
    """2350 test samples: three tasks, and for convolutions 24 batches, the last of half the size."""
    rng = np.random.default_rng(5)
    shape = (8,) if make is mlp else (2, 8, 8)
    inputs, targets = torch.as_tensor(rng.normal(size=(2350, *shape))), torch.as_tensor(rng.integers(0, 3, 2350))
    train = (inputs[:60] + 1.0, targets[:60])
    transform = fv.Transform(mean=(0.3,), std=(2.0,))
    split = fv.split(train, fv.IID(), clients=CLIENTS, seed=1, transform=transform, test=(inputs, targets))
    solver = SupervisedSolver(fv.Supervised(make()), split, SolverSettings())
    parts = [solver.evaluate(solver.spec.gather(make()), None, k) for k in range(solver.test_parts)]
    with torch.no_grad():
        outputs = make()((inputs - 0.3) / 2)
    assert sum(part.samples for part in parts) == 2350
    assert sum(part.correct for part in parts) == (outputs.argmax(1) == targets).sum()
    whole = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    assert sum(part.loss for part in parts) == pytest.approx(float(whole), rel=1e-12)
