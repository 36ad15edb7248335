"""The library and examples/fedvra_from_scratch.py must walk the same path: one was written without the other."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedvra as fv
from fedvra.core.streams import Purpose, stream
from fedvra.data.batches import batch_schedule
from harness import TOLERANCE, deviation, duals, simulate
from quadratics import case, unequal_weights

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import fedvra_from_scratch as scratch


@pytest.mark.parametrize("seed", range(3))
def test_same_trajectory_on_quadratics(seed):
    c, omega = case(seed=seed, empty=(5,)), unequal_weights(6, seed)
    A, b = torch.tensor(c.A), torch.tensor(c.b)
    knobs = {"gamma": 0.8, "a": 2.0, "d": 1.7}

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        return A[i] @ x - b[i]

    rounds = list(scratch.fedvra(gradient, torch.tensor(c.x0), c.cohorts, c.Q.tolist(), list(omega), eta=0.05, **knobs))
    history = simulate(fv.FedVRA(**knobs), c, 0.05, weights=omega)
    assert deviation(history.trajectory, torch.stack([x0 for x0, _, _ in rounds])) <= TOLERANCE
    _, lam, lam_i = rounds[-1]
    assert deviation(history.lam, lam) <= TOLERANCE
    theirs = np.stack([lam_i.get(i, torch.zeros_like(lam)).numpy() for i in range(c.clients)])
    assert deviation(duals(history, c.clients), theirs) <= TOLERANCE


@pytest.mark.parametrize("batch_size", [None, 16])
def test_same_trajectory_of_a_network_on_digits(batch_size):
    """Float64, 10 clients of which 3 take part, 1 to 6 local steps, weight decay as part of f_i; the batches are shared."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels[:600] / 16), torch.tensor(digits[:600])
    clients, rounds, decay = 10, 8, 1e-3
    data = fv.split((images, labels), fv.Dirichlet(0.3), clients=clients, seed=0)
    rng = np.random.default_rng(0)
    cohorts = [sorted(rng.permutation(clients)[:3].tolist()) for _ in range(rounds)]
    Q = rng.integers(1, 7, (rounds, clients))
    knobs = {"gamma": 0.1, "a": 4.0, "d": clients / 3}

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(scratch.PIXELS, scratch.HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(scratch.HIDDEN, scratch.CLASSES),
    ).double()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        schedule = batch_schedule(len(data.part(i)), batch_size, t + 1, stream(0, Purpose.BATCHES, r, i))
        part = data.part(i)[schedule[t]]
        return scratch.loss_gradient(x, images[part], labels[part]) + decay * x

    path = [
        x0.numpy()
        for x0, _, _ in scratch.fedvra(gradient, start, cohorts, Q.tolist(), [1 / clients] * clients, eta=0.1, **knobs)
    ]
    history = fv.simulate(
        fv.FedVRA(**knobs),
        problem=fv.Supervised(model, loss=torch.nn.functional.cross_entropy, weight_decay=decay),
        data=data,
        sampler=fv.Replay(cohorts),
        work=fv.Steps(Q),
        lr=0.1,
        batch_size=batch_size,
        rounds=rounds,
        seed=0,
        x_init=start,
        weights="equal",
        keep="x0",
        workers=1,
    )
    assert deviation(history.trajectory, np.stack(path)) <= TOLERANCE
    assert np.abs(path[-1] - start.numpy()).max() > 0.05


def test_the_example_learns(capsys):
    accuracy = scratch.main(rounds=12)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("round  12   test accuracy")
    assert accuracy > 0.85
