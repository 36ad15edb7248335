"""Private steps: clipping bounds a record's part, noise has the variance it should, and without either it is plain SGD."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core import rule
from fedvra.core.block import Block
from fedvra.core.optimisers import PLAIN
from fedvra.core.record_dp import FromStreams, FromSystem, Guard
from fedvra.core.streams import SERVER
from fedvra.data.transform import Transform
from fedvra.local.solver import SupervisedSolver

pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")

N, SAMPLES = 4, 48
OPEN = {"count_noise": 0.0}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(seed: int = 0, samples: int = SAMPLES) -> fv.FederatedData:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((samples, 5))
    return fv.split((inputs, (inputs[:, :3].argmax(1)).astype(np.int64)), fv.IID(), clients=N)


def run(algorithm: fv.Algorithm, rounds: int = 3, **more: Any) -> fv.History:
    given = {"problem": fv.Supervised(net, weight_decay=0.01), "data": data(), "sampler": fv.Uniform(2), "lr": 0.1}
    return fv.simulate(algorithm, **{**given, "work": fv.Steps(3), "rounds": rounds, "workers": 1, **more})


def solver_of(problem: fv.Supervised, given: fv.FederatedData) -> SupervisedSolver:
    problem.check(given, fv.SolverSettings(seed=0))
    made = problem.solver(given, fv.SolverSettings(seed=0))
    assert isinstance(made, SupervisedSolver)
    return made


ALGORITHMS = [
    fv.FedAvg(),
    fv.FedProx(mu=0.1),
    fv.FedNova(),
    fv.Scaffold(),
    fv.FedADMM(gamma=0.1),
    fv.FedDyn(alpha=0.1),
    fv.FedVRA(gamma=0.1, a=3, d=2),
    fv.VRLSGD(),
    fv.FedPD(gamma=0.1),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_without_noise_and_clipping_it_is_plain_sgd(algorithm: fv.Algorithm) -> None:
    """Whole batches, float64: the same x0 and duals, for every algorithm."""
    sampler = fv.Full() if algorithm.everyone_takes_part else fv.Uniform(2)
    plain = run(algorithm, sampler=sampler)
    private = run(algorithm, sampler=sampler, privacy=fv.RecordDP(clip=math.inf, noise=0, **OPEN))
    torch.testing.assert_close(private.x0, plain.x0, rtol=1e-12, atol=1e-12)
    for client, row in plain.duals.items():
        torch.testing.assert_close(private.duals[client], row, rtol=1e-11, atol=1e-11)
    assert private.path.name == "per record"
    assert all(record["train_loss"] is None and record["epsilon"] is None for record in private.metrics)


@pytest.mark.parametrize("local", [fv.SGD(momentum=0.9), fv.Adam()], ids=["momentum", "adam"])
def test_optimisers_take_noised_gradients(local: Any) -> None:
    """What an optimiser does to a noised gradient is post-processing: without noise, the plain run again."""
    plain = run(fv.FedAvg(), local=local)
    private = run(fv.FedAvg(), local=local, privacy=fv.RecordDP(clip=math.inf, noise=0, **OPEN))
    torch.testing.assert_close(private.x0, plain.x0, rtol=1e-10, atol=1e-10)


def test_gradients_of_records_are_those_of_autograd_and_clipping_is_by_record() -> None:
    solver = solver_of(fv.Supervised(net), data())
    x, rows = solver.subject.gather(), solver.data.part(1)
    found = solver.private.gradients(x, solver.feed.batch(rows))
    for j, row in enumerate(rows):
        solver.subject.point_at(x, None)
        solver.subject.backward(solver.feed.batch(np.array([row])))
        one = torch.cat([p.grad.reshape(-1) for p in solver.subject.parameters if p.grad is not None])
        torch.testing.assert_close(found[j], one)
    clip = 0.5
    by_hand = sum(g * min(1.0, clip / float(g.norm())) for g in found)
    torch.testing.assert_close(solver.private.clipped_sum(x, rows, clip, None), by_hand)
    solver.close()


@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["usual", "an outlier"])
def test_one_record_changes_a_sum_by_the_clipping_length_at_most(scale: float) -> None:
    """Two neighbours: the same data with and without one record, which may be whatever it likes."""
    given = data()
    given.dataset.inputs[given.part(0)[-1]] *= scale  # type: ignore[operator]
    solver = solver_of(fv.Supervised(net), given)
    rows, clip = given.part(0), 0.3
    for seed in range(5):
        x = torch.randn(solver.spec.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        more, less = (solver.private.clipped_sum(x, each, clip, None) for each in (rows, rows[:-1]))
        assert float((more - less).norm()) <= clip * (1 + 1e-9)
    solver.close()


def test_a_record_whose_gradient_is_not_finite_counts_as_nothing() -> None:
    gradients = torch.tensor([[3.0, 4.0], [math.nan, 0.0], [math.inf, 1.0], [0.1, 0.0]])
    torch.testing.assert_close(rule.clipped_sum(gradients, 1.0), torch.tensor([0.7, 0.8]))
    assert rule.clipped_sum(gradients[1:3], 1.0).tolist() == [0, 0]
    torch.testing.assert_close(rule.clipped_sum(gradients[:1], math.inf), gradients[0])


@pytest.mark.parametrize("secret", [False, True], ids=["streams", "system"])
def test_noise_has_the_standard_deviation_that_it_should(secret: bool) -> None:
    """One step from zero gradients: x moves by -eta*sigma*C*z/B, with B the expected size of a batch."""
    chance = Guard(fv.RecordDP(), np.array([1]), secret).chance(0, 0, 0)
    assert isinstance(chance, FromSystem if secret else FromStreams)
    z = chance.normal(200_000)
    assert abs(z.mean()) < 0.012  # five standard errors
    assert abs(z.std() - 1) < 0.009
    assert abs((z**4).mean() - 3) < 0.12  # normal, not merely of that variance
    moved = rule.noised_gradient(torch.zeros(len(z)), torch.from_numpy(z), clip=0.5, noise=3.0, expected=20.0)
    assert float(moved.std()) == pytest.approx(3.0 * 0.5 / 20, rel=0.01)


def test_noise_of_a_run_is_that_of_the_rule() -> None:
    """Plain SGD on a constant loss: all that moves a client is noise."""
    flat = fv.Supervised(net, loss=lambda outputs, targets: 0 * outputs.sum())
    options = {"batch_size": 6, "work": fv.Steps(4), "sampler": fv.Full(), "weights": [1, 0, 0, 0], "rounds": 40}
    history = run(fv.FedAvg(), problem=flat, keep="x0", privacy=fv.RecordDP(clip=0.5, noise=2, **OPEN), **options)
    assert history.trajectory is not None
    moves = torch.diff(history.trajectory, dim=0)
    assert float(moves.std()) == pytest.approx(0.1 * 2 * 0.5 / 6 * math.sqrt(4), rel=0.05)


def test_batches_are_poisson_and_secret_ones_are_not_the_seeds() -> None:
    chance = FromStreams(seed=3, round=1, client=2)
    sizes = np.array([len(chance.batch(200, 0.1)) for _ in range(2000)])
    assert sizes.mean() == pytest.approx(20, abs=0.5)
    assert sizes.var() == pytest.approx(18, rel=0.15)  # binomial
    again = FromStreams(seed=3, round=1, client=2)
    assert np.array_equal(again.batch(200, 0.1), FromStreams(3, 1, 2).batch(200, 0.1))
    assert len(FromSystem().batch(50, 1.0)) == 50
    assert not np.array_equal(FromSystem().normal(8), FromSystem().normal(8))
    assert SERVER != 2


@pytest.mark.parametrize("secret", [False, True], ids=["streams", "system"])
def test_crops_flips_and_dropout_are_as_secret_as_the_batch(secret: bool) -> None:
    """They go by a record's place in its batch: whoever has the seed and knew them could tell who else is in it."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (24, 1, 4, 4), dtype=np.uint8))
    made = fv.Dataset("images", images, torch.arange(24) % 3, transform=Transform(crop_padding=2, flip=True), classes=3)
    plain = replace(made, transform=Transform())
    layers = {"crops": (made, nn.Flatten()), "dropout": (plain, nn.Sequential(nn.Flatten(), nn.Dropout(0.5)))}
    for dataset, first in layers.values():
        problem = fv.Supervised(lambda first=first: nn.Sequential(first, nn.Linear(16, 3)))  # type: ignore[misc]
        solver = solver_of(problem, fv.split(dataset, fv.IID(), clients=1))
        x, block = solver.subject.gather(), Block(0, 0, np.array([0]), np.array([1]), np.array([0.1]))
        terms = rule.Terms(x, None, 0.1, 0.0)
        guard = Guard(fv.RecordDP(clip=math.inf, noise=0, **OPEN), np.array([24]), secret)
        one, other = (solver.private.steps(terms, block, guard, PLAIN) for _ in range(2))
        assert torch.equal(one, other) != secret  # no noise, all records in the batch: nothing else is drawn
        solver.close()


def test_an_empty_batch_is_a_step_of_noise_alone() -> None:
    history = run(fv.FedAvg(), batch_size=1, work=fv.Steps(40), rounds=2, privacy=fv.RecordDP(noise=1, **OPEN))
    assert bool(torch.isfinite(history.x0).all())


def test_the_number_of_samples_is_told_with_noise() -> None:
    exact, noised = (
        run(fv.FedAvg(), rounds=1, work=fv.Epochs(1), batch_size=4, sampler=fv.Full(), privacy=fv.RecordDP(**more))
        for more in (OPEN, {"count_noise": 30.0})
    )
    assert exact.metrics[0]["local_steps"] == 4 * 3
    assert noised.metrics[0]["local_steps"] != 4 * 3


def test_workers_and_resuming_leave_bits_and_epsilon_as_they_were(tmp_path: Path) -> None:
    options = {"batch_size": 5, "privacy": "record:clip=1,noise=2,max_epsilon=20", "work": fv.Epochs(1)}
    algorithm = fv.FedVRA(gamma=0.1, a=3, d=2)
    whole = run(algorithm, 4, **options)
    run(algorithm, 2, out=tmp_path / "a", report=False, **options)
    rest = run(algorithm, 4, out=tmp_path / "a", report=False, **options)
    assert torch.equal(rest.x0, whole.x0)
    assert torch.equal(run(algorithm, 4, **{**options, "workers": 2}).x0, whole.x0)
    assert [m["epsilon"] for m in rest.metrics] == [m["epsilon"] for m in whole.metrics]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["epsilon"] == whole.metrics[-1]["epsilon"]


def test_clients_leave_when_their_budget_is_spent_and_the_run_says_so() -> None:
    history = run(fv.FedAvg(), 60, batch_size=4, privacy=fv.RecordDP(noise=2, max_epsilon=4))
    last = history.metrics[-1]
    assert last["round"] < 60
    assert "budgets are spent" in last["stopped"]
    assert last["in_budget"] == 0
    assert last["cohort"] == []
    assert last["out_of_budget"]
    assert all(record["epsilon"] <= 4 for record in history.metrics)
    assert any(record.get("out_of_budget") and record["cohort"] for record in history.metrics)


def test_algorithms_that_need_everybody_stop_with_the_first() -> None:
    history = run(fv.VRLSGD(), 60, batch_size=4, sampler=fv.Full(), privacy=fv.RecordDP(noise=2, max_epsilon=4))
    assert "budgets are spent" in history.metrics[-1]["stopped"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "batch norm": (
        {
            "problem": fv.Supervised(
                lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).double(), buffers="average"
            )
        },
        "mixes the records",
    ),
    "no records": (
        {"problem": fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2)), "data": None},
        "Quadratic",
    ),
    "a sampler by losses": ({"sampler": fv.PowerOfChoice(2, 3)}, "losses"),
    "a loop of one's own": ({"local": fv.Loop(lambda work: work.solve())}, "loop"),
    "no batched form": (
        {"problem": fv.Supervised(net, loss=lambda o, t: (o * o).sum() if o.sum().item() > 0 else o.sum())},
        "vmap",
    ),
    "another value": ({"privacy": 3}, "privacy must be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_private_is_refused_in_a_sentence(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(fv.UsageError, match=message):
        run(fv.FedAvg(), **{"privacy": fv.RecordDP(noise=1), **options})


def test_dropout_and_inputs_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.drop = nn.Linear(3, 4), nn.Linear(2, 4), nn.Dropout(0.5)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.drop(self.one(left) + self.two(right))

    rng = np.random.default_rng(0)
    inputs = {"left": rng.standard_normal((40, 3), np.float32), "right": rng.standard_normal((40, 2), np.float32)}
    given = fv.split((inputs, np.arange(40) % 4), fv.IID(), clients=N)
    private = {"privacy": fv.RecordDP(noise=1), "batch_size": 5}
    twice = [run(fv.FedAvg(), problem=fv.Supervised(Named), data=given, **private).x0 for _ in range(2)]
    assert torch.equal(*twice)
