"""Clients that run SGD with momentum: each algorithm against its textbook version, and what the duals come to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedvra as fv
import textbook_momentum as book
from fedvra.core.optimisers import parse_local
from harness import TOLERANCE, deviation, duals, simulate
from quadratics import case

ETA = 0.02
FORMS = [(0.9, False), (0.6, True)]


def assert_same(history: fv.History, run: book.Run, with_duals: bool) -> None:
    assert deviation(history.trajectory, run.x0[1:]) <= TOLERANCE
    assert np.abs(run.x0[-1] - run.x0[0]).max() > 0.1, "the run went nowhere"
    if with_duals:
        assert deviation(duals(history, run.clients.shape[1]), run.clients[-1]) <= TOLERANCE
        assert deviation(history.lam, run.server[-1]) <= TOLERANCE


@pytest.mark.parametrize(("rho", "nesterov"), FORMS)
@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "feddyn"])
def test_momentum_is_that_of_the_textbook(name, rho, nesterov):
    c, local = case(empty=(5,)), fv.SGD(momentum=rho, nesterov=nesterov)
    if name == "feddyn":
        history = simulate(fv.FedDyn(alpha=0.7), c, ETA, local=local)
        run = book.feddyn(*c.parts(), eta=ETA, alpha=0.7, rho=rho, nesterov=nesterov)
    else:
        algorithm = {"fedavg": fv.FedAvg(), "fednova": fv.FedNova(), "scaffold": fv.Scaffold()}[name]
        history = simulate(algorithm, c, ETA, local=local)
        run = getattr(book, name)(*c.parts(), eta=ETA, rho=rho, nesterov=nesterov)
    assert_same(history, run, with_duals=name in ("scaffold", "feddyn"))


@pytest.mark.parametrize(("rho", "nesterov"), [*FORMS, (0.0, False)])
def test_the_amount_of_work_is_the_norm_of_the_accumulation_vector(rho, nesterov):
    steps = np.array([1, 2, 7, 2, 40])
    amounts = fv.SGD(momentum=rho, nesterov=nesterov).amounts(steps)
    norms = [np.abs(book.accumulation(q, rho, nesterov)).sum() for q in steps]
    assert np.allclose(amounts, norms, rtol=1e-13)
    if not nesterov:
        closed = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        assert np.allclose(amounts, closed, rtol=1e-12)


def test_without_momentum_the_amount_is_the_sum_of_the_stepsizes():
    local = fv.SGD(lr_decay=0.9, warmup=2)
    assert local.factors(4) == [0.5, 0.9, 0.9**2, 0.9**3]
    assert local.amounts(np.array([4])) == pytest.approx(sum(local.factors(4)))
    assert fv.SGD(cosine=True).factors(4) == pytest.approx([1.0, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2])


@pytest.mark.parametrize("local", [fv.SGD(momentum=0.9), fv.SGD(cosine=True, momentum=0.5), fv.SGD(warmup=3)])
def test_a_constant_gradient_is_found_exactly_by_the_dual(local):
    """f_i linear, g_i = -b_i: whatever the optimiser, alpha = 1/(eta*Q~) makes SCAFFOLD's dual the gradient itself."""
    c = case(R=1, full=True)
    problem = fv.Quadratic(np.zeros_like(c.A), c.b)
    history = simulate(fv.Scaffold(), c, ETA, problem=problem, local=local)
    assert deviation(duals(history, c.clients), -c.b) <= 1e-12


@pytest.mark.parametrize("algorithm", [fv.Scaffold(), fv.VRLSGD(), fv.FedNova(), fv.FedVRA(), fv.FedVRA(gamma=0.5)])
@pytest.mark.parametrize("local", [fv.Adam(), fv.Torch(torch.optim.RMSprop)], ids=["adam", "torch"])
def test_what_divides_by_an_amount_of_work_is_refused_where_there_is_none(algorithm, local):
    with pytest.raises(fv.UsageError, match=r"does not go with .* no such number"):
        simulate(algorithm, case(R=1, full=True), ETA, local=local)


@pytest.mark.parametrize(
    "algorithm",
    [fv.FedAvg(), fv.FedProx(mu=0.5), fv.FedADMM(gamma=1.0), fv.FedDyn(alpha=1.0), fv.FedVRA(gamma=1.0, a=1, d=1)],
    ids=lambda a: a.label,
)
def test_penalty_methods_run_under_adam_and_keep_the_sum_of_duals(algorithm):
    c = case()
    history = simulate(algorithm, c, 0.05, local=fv.Adam())
    assert deviation(duals(history, c.clients).mean(0), history.lam) <= 1e-12
    assert history.trajectory.diff(dim=0).norm(dim=1).min() > 0


def test_remark_1_is_for_plain_sgd():
    algorithm = fv.FedVRA(gamma=0.5, a=fv.Remark1())
    with pytest.raises(fv.UsageError, match="remark1 is a bound for plain SGD"):
        simulate(algorithm, case(R=1), ETA, local=fv.SGD(momentum=0.5))


def test_clipping_bounds_every_step_and_keeps_the_sum_of_duals():
    c = case(work=(1, 1))
    history = simulate(fv.Scaffold(), c, ETA, local=fv.SGD(clip=0.01))
    moves = torch.cat([torch.as_tensor(c.x0)[None], history.trajectory]).diff(dim=0).norm(dim=1)
    assert moves.max() <= 0.01 * ETA * (1 + 1e-9)
    assert deviation(duals(history, c.clients).mean(0), history.lam) <= 1e-12
    free = simulate(fv.Scaffold(), c, ETA, local=fv.SGD(clip=1e9))
    assert deviation(free.trajectory, simulate(fv.Scaffold(), c, ETA).trajectory) <= TOLERANCE


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: fv.SGD(momentum=1.0), "momentum must be in"),
        (lambda: fv.SGD(nesterov=True), "needs a momentum"),
        (lambda: fv.SGD(clip=0), "clip must be > 0"),
        (lambda: fv.SGD(lr_decay=1.5), "lr_decay"),
        (lambda: fv.Adam(beta1=1), "beta1 must be"),
        (lambda: fv.AdamW(weight_decay=-1), "weight_decay must be"),
        (lambda: parse_local("sdg"), "did you mean 'sgd'"),
        (lambda: parse_local("torch"), "from Python"),
        (lambda: parse_local("sgd:momentum=much"), "must be a number"),
        (lambda: simulate(fv.FedAvg(), case(R=1), local="sgd"), "such as fv.SGD"),
        (lambda: simulate(fv.FedAvg(), case(R=1), local=fv.Torch(len)), "torch.optim.Optimizer, got int"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(wrong, sentence):
    with pytest.raises(fv.UsageError, match=sentence):
        wrong()


@pytest.mark.parametrize("local", [fv.SGD(), fv.SGD(momentum=0.9, nesterov=True, clip=2.5, cosine=True), fv.AdamW()])
def test_as_text_and_back(local):
    assert parse_local(local.text()) == local
