"""A training loop of the user's own: hooked, counted, and the same as the library's own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from every_object import Shared
from harness import deviation, duals
from quadratics import case

CLIENTS, ETA = 6, 0.05
ALGORITHMS = [
    fv.FedAvg(),
    fv.FedProx(mu=0.3),
    fv.FedNova(),
    fv.Scaffold(),
    fv.FedDyn(alpha=0.5),
    fv.FedVRA(gamma=0.5, a=2, d=1),
    fv.FedVRA(),
]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data() -> fv.FederatedData:
    rng = np.random.default_rng(0)
    inputs, targets = torch.as_tensor(rng.normal(size=(120, 5))), torch.as_tensor(rng.integers(0, 3, 120))
    return fv.split((inputs, targets), fv.QuantitySkew(alpha=3.0), clients=CLIENTS, seed=1)


def run(local: Any, algorithm: fv.Algorithm | None = None, model: nn.Module | None = None, **changes) -> fv.History:
    given = {
        "problem": fv.Supervised(model or mlp(), weight_decay=1e-2, buffers="average"),
        "data": data(),
        "sampler": fv.Uniform(3),
        "work": fv.Epochs(2),
        "lr": ETA,
        "batch_size": 8,
        "rounds": 3,
        "workers": 1,
        "drop": 0.2,
    }
    return fv.simulate(algorithm or fv.Scaffold(), local=local, **{**given, **changes})


Make = Callable[[list[Tensor], float], torch.optim.Optimizer]


def plain(parameters: Any, eta: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=eta)


def loop(make: Make = plain, closure: bool = False, steps: int | None = None) -> fv.Loop:
    """As an engineer would write it."""

    def train(work: fv.LocalWork) -> Tensor:
        model = work.model()
        optimizer = work.hook(make(model.parameters(), work.eta))

        def compute(inputs: Tensor, targets: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        for k, batch in enumerate(work.batches()):
            if k == steps:
                break
            if closure:
                loss = optimizer.step(lambda batch=batch: compute(*batch))
            else:
                loss = compute(*batch)
                optimizer.step()
            work.report(loss)
        return work.move()

    return fv.Loop(train)


def same(left: fv.History, right: fv.History, atol: float = 1e-12) -> None:
    assert torch.allclose(left.x0, right.x0, rtol=0, atol=atol)
    assert torch.allclose(left.lam, right.lam, rtol=0, atol=10 * atol)
    for a, b in zip(left.metrics, right.metrics, strict=True):
        assert a["cohort"] == b["cohort"]
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_a_loop_of_ones_own_is_the_librarys(algorithm):
    solved = run(fv.Loop(lambda work: work.solve()), algorithm)
    own = run(loop(), algorithm)
    same(own, solved)
    same(own, run(fv.SGD(), algorithm))
    assert str(own.path) == "eager (a loop of one's own takes the steps)"


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("algorithm", [fv.FedNova(), fv.Scaffold(), fv.VRLSGD()], ids=repr)
def test_the_amount_of_work_of_momentum_is_counted(algorithm, nesterov):
    options = {"sampler": fv.Full(), "drop": 0.0} if algorithm.everyone_takes_part else {}
    own = run(loop(lambda p, eta: torch.optim.SGD(p, lr=eta, momentum=0.9, nesterov=nesterov)), algorithm, **options)
    same(own, run(fv.SGD(momentum=0.9, nesterov=nesterov), algorithm, **options), 1e-11)


def test_the_sum_of_duals_stays_exact_whatever_loops_do():
    """FedVRA's auto: alpha is worked out by each client from what it came to, and by the server from what it is told."""
    found = run(loop(lambda p, eta: torch.optim.SGD(p, lr=0.7 * eta, momentum=0.9)), fv.FedVRA(), rounds=6)
    assert deviation(duals(found, CLIENTS).mean(0), found.lam) <= 1e-13
    assert found.lam.norm() > 1e-3


def test_a_closure_is_corrected_within_the_step():
    same(run(loop(closure=True)), run(loop()), 0.0)


@pytest.mark.parametrize("algorithm", [fv.FedNova(), fv.Scaffold()], ids=repr)
def test_the_steps_that_were_taken_count_not_those_that_were_asked_for(algorithm):
    """Loops that stop after five steps are clients that were given five."""
    assert run(fv.SGD(), algorithm, work=fv.Steps(9)).x0.norm() > 0
    same(run(loop(steps=5), algorithm, work=fv.Steps(9)), run(fv.SGD(), algorithm, work=fv.Steps(5)))
    records = run(loop(steps=5), algorithm, work=fv.Steps(9)).metrics
    assert all(record["local_steps"] == 5 * len(record["cohort"]) for record in records)


def test_a_stepsize_of_the_loops_own_counts():
    """lr/2 in the loop is lr/2 in the run, for the duals too."""
    same(run(loop(lambda p, eta: torch.optim.SGD(p, lr=eta / 2))), run(fv.SGD(), lr=ETA / 2))


def test_dampening_and_schedules_give_exact_duals_of_a_constant_gradient():
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ self.x

    rng = np.random.default_rng(0)
    split = fv.split((rng.normal(size=(12, 3)), rng.normal(size=12)), fv.IID(), clients=3)

    def train(work: fv.LocalWork) -> Tensor:
        model = work.model()
        optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.7, dampening=0.4))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        for inputs, _ in work.batches():
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            schedule.step()
        return work.move()

    problem = fv.Supervised(Slope(), loss=lambda outputs, targets: outputs.mean())
    found = fv.simulate(
        fv.Scaffold(), problem=problem, data=split, sampler=fv.Full(), work=fv.Steps(5), rounds=2, local=fv.Loop(train)
    )
    gradients = np.stack([split.dataset.inputs[split.part(i)].numpy().mean(0) for i in range(3)])
    assert deviation(duals(found, 3), gradients) <= 1e-12


def test_adam_in_a_loop_goes_with_penalty_methods_alone():
    adam = loop(lambda p, eta: torch.optim.Adam(p, lr=eta))
    same(run(adam, fv.FedDyn(alpha=0.5)), run(fv.Adam(), fv.FedDyn(alpha=0.5)))
    for algorithm in (fv.Scaffold(), fv.FedNova(), fv.FedVRA()):
        with pytest.raises(fv.UsageError, match="no such number"):
            run(adam, algorithm)


def test_statistics_and_dropout_are_those_of_the_library():
    torch.manual_seed(0)
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    model = nn.Sequential(*layers).double()
    options = {"drop_last": True, "solver": fv.SolverSettings(path="eager"), "algorithm": fv.FedAvg()}
    own, solved = run(loop(), model=model, **options), run(fv.SGD(), model=model, **options)
    same(own, solved)
    assert torch.allclose(own.aux, solved.aux, rtol=0, atol=1e-12)


def test_a_model_of_another_class_and_a_loader_of_ones_own():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)

    def train(work: fv.LocalWork) -> Tensor:
        model = work.model(Wrapped())
        optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=work.eta))
        for inputs, targets in torch.utils.data.DataLoader(work.dataset(), batch_size=1000):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return work.move()

    options = {"batch_size": None, "work": fv.Steps(1)}
    own = run(fv.Loop(train), **options)
    same(own, run(fv.SGD(), **options))  # not a word about losses: they are f_i at x0, and so is that of one step


@pytest.mark.parametrize("local", [loop(), fv.Torch(lambda p: torch.optim.Adagrad(p))], ids=["loop", "torch"])
def test_functions_work_in_worker_processes(local):
    one, two = (run(local, fv.FedDyn(alpha=0.5), workers=workers) for workers in (1, 2))
    assert torch.equal(one.x0, two.x0)
    assert torch.equal(one.lam, two.lam)


def test_by_hand_on_a_problem_without_a_model():
    c = case(R=3, full=True)

    def train(work: fv.LocalWork) -> Tensor:
        x = work.x0.clone()
        for _ in range(work.steps):
            x = work.step(x, torch.as_tensor(c.A[work.client]) @ x - torch.as_tensor(c.b[work.client]))
        return x - work.x0

    options = {"problem": fv.Quadratic(c.A, c.b), "data": None, "batch_size": None, "work": fv.Steps(4), "drop": 0.0}
    own, known = run(fv.Loop(train), **options), run(fv.SGD(), **options)
    assert torch.allclose(own.x0, known.x0, rtol=0, atol=1e-12)
    assert torch.allclose(own.lam, known.lam, rtol=0, atol=1e-12)


def test_diagnostics_and_refusals_go_along():
    found = run(loop(), diagnostics=1, refuse=fv.MedianNorm(1.0), drop=0.0)
    assert found.metrics[0]["diagnostics"]["drift"] > 0
    assert any(record["refused"] for record in found.metrics)


def _forgot(work: Any) -> None:
    work.model()


def _idle(work: Any) -> Tensor:
    work.hook(torch.optim.SGD(work.model().parameters(), lr=0.1))
    return work.move()


def _half(work: Any) -> None:
    work.hook(torch.optim.SGD(list(work.model().parameters())[:2], lr=0.1))


def _decays(work: Any) -> None:
    work.hook(torch.optim.SGD(work.model().parameters(), lr=0.1, weight_decay=0.1))


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (_forgot, r"return work\.move\(\)"),
        (_idle, "took no step"),
        (_half, "2 of the model's 4 trainable parameters"),
        (_decays, "set one of them to 0"),
        (lambda work: work.hook(None), "say first which model"),
        (lambda work: work.model() and work.hook(7), "torch.optim.Optimizer of your loop"),
        (lambda work: work.move(), "no model whose move"),
        (lambda work: work.model(nn.Linear(2, 2)), "the same order"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(train, sentence):
    with pytest.raises(fv.UsageError, match=sentence):
        run(fv.Loop(train))


def test_a_loop_without_a_function_or_with_anchors_is_refused():
    with pytest.raises(fv.UsageError, match=r"Loop\(train\)"):
        run(fv.Loop())
    with pytest.raises(fv.UsageError, match="keeps an x0 of each client's own"):
        run(loop(), fv.FedPD(), sampler=fv.Full(), drop=0.0)
    with pytest.raises(fv.UsageError, match="leave clip"):
        fv.Loop(_idle, clip=1.0)
    with pytest.raises(fv.UsageError, match="needs a function"):
        fv.Loop(3)


def test_a_second_block_is_stepped_by_the_library_or_not_at_all():
    options = {"problem": Shared(torch.ones(4, 3)), "data": None, "batch_size": None, "work": fv.Steps(2), "drop": 0.0}
    solved = run(fv.Loop(lambda work: work.solve()), **options)
    assert torch.allclose(solved.x0, run(fv.SGD(), **options).x0, rtol=1e-6)  # sums in another order
    with pytest.raises(fv.UsageError, match="second block"):
        run(fv.Loop(lambda work: 0 * work.x0), **options)
