"""A run whose members change comes to rest at the minimiser of those who are there, and only with lam reweighed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.core import rule
from fedvra.core.cohort import Ints
from fedvra.core.members import Members
from fedvra.engines.experiment import Plan, raw_weights
from fedvra.engines.federation import Federation
from quadratics import quadratic

N, P = 6, 5
SAMPLES = np.array([4, 1, 3, 2, 5, 2])


@dataclass
class Changing:
    """A simulated federation whose members the test changes between rounds."""

    federation: Federation
    weights: str
    reweigh: bool = True

    def now(self, members: Members, samples: Ints, client: int) -> None:
        f, plan = self.federation, self.federation.plan
        before, after = (raw_weights(self.weights, n, m) for n, m in ((plan.samples, plan.members), (samples, members)))
        if self.reweigh:
            dual = dict(f.clients.duals.items()).get(client)
            f.state.lam = rule.reweighed_dual(f.state.lam, dual, before.sum(), (after - before)[client])
        f.plan = Plan(f.experiment, samples, members)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.federation.round()

    def drift(self) -> float:
        f, duals = self.federation, dict(self.federation.clients.duals.items())
        total = sum(f.plan.omega[i] * duals[i].double() for i in f.plan.members.numbers.tolist() if i in duals)
        return float((f.state.lam - total).norm())


def minimiser(A: np.ndarray, b: np.ndarray, omega: np.ndarray) -> np.ndarray:
    return np.linalg.solve(np.einsum("i,ipq->pq", omega, A), omega @ b)


ROWS = [fv.FedVRA(gamma=1.0, a=1), fv.FedVRA(), fv.Scaffold(), fv.FedDyn(alpha=1.0), fv.FedADMM(gamma=1.0)]


@pytest.mark.parametrize("weights", ["equal", "samples"])
@pytest.mark.parametrize("algorithm", ROWS, ids=repr)
def test_the_run_converges_to_the_minimiser_of_those_who_are_there(algorithm: fv.Algorithm, weights: str) -> None:
    A, b = quadratic(N, P, low=1.0, high=2.0)
    sampler = fv.Full()
    work = fv.Steps(4)
    e = fv.Experiment(algorithm, fv.Quadratic(torch.tensor(A), torch.tensor(b)), sampler, work, lr=0.1, weights=weights)
    with closing(Federation(e, workers=1)) as federation:
        members = Members.founders(4, numbers=N)
        federation.plan = Plan(e, SAMPLES, members)
        run = Changing(federation, weights)
        run.play(7)
        members = members.join(5, federation.state.round)
        run.now(members, SAMPLES, 5)
        assert run.drift() < 1e-13
        run.play(5)
        members = members.leave(1, federation.state.round)
        run.now(members, SAMPLES, 1)
        assert run.drift() < 1e-13
        run.play(5)
        samples = np.where(np.arange(N) == 3, 9, SAMPLES)
        run.now(members, samples, 3)
        assert run.drift() < 1e-13
        run.play(400)
        assert run.drift() < 1e-12
        r = np.where(members.present, samples if weights == "samples" else 1, 0).astype(float)
        there = minimiser(A, b, r / r.sum())
        assert np.linalg.norm(federation.state.x0.numpy() - there) < 1e-8
        assert np.linalg.norm(there - minimiser(A, b, np.full(N, 1 / N))) > 0.05


@pytest.mark.parametrize("what", ["join", "leave", "grow"])
def test_without_it_the_run_comes_to_rest_elsewhere(what: str) -> None:
    A, b = quadratic(N, P, low=1.0, high=2.0)
    ends = {}
    for reweigh in (True, False):
        problem = fv.Quadratic(torch.tensor(A), torch.tensor(b))
        e = fv.Experiment(fv.FedVRA(gamma=1.0, a=1), problem, fv.Full(), fv.Steps(4), lr=0.1, weights="samples")
        with closing(Federation(e, workers=1)) as federation:
            members, samples = Members.founders(N - 1, numbers=N), SAMPLES
            federation.plan = Plan(e, samples, members)
            run = Changing(federation, "samples", reweigh)
            run.play(3)
            client = {"join": N - 1, "leave": 2, "grow": 2}[what]
            members = {"join": members.join(N - 1, 3), "leave": members.leave(2, 3), "grow": members}[what]
            samples = np.where(np.arange(N) == 2, 12, samples) if what == "grow" else samples
            run.now(members, samples, client)
            run.play(300)
            r = np.where(members.present, samples, 0).astype(float)
            ends[reweigh] = float(np.linalg.norm(federation.state.x0.numpy() - minimiser(A, b, r / r.sum())))
    assert ends[True] < 1e-8
    assert ends[False] > 1e-3
