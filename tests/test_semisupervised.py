"""Semi-supervised learning: the objective as documented, hidden labels that stay hidden, and gains that are real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedvra as fv
from fedvra import checkpoint
from fedvra.config import configure
from fedvra.data.batches import batch_schedule
from fedvra.federation import Experiment, Federation
from fedvra.models import MODELS
from fedvra.problems.base import SolverSettings
from fedvra.problems.semisupervised import stratified
from fedvra.streams import Purpose, stream
from fedvra.tasks import TASKS

CLASSES, FEATURES = 3, 5


def small_data(clients: int = 4, dtype: torch.dtype = torch.float64, n: int = 96) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=n)
    points = rng.normal(size=(n, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[labels]
    pair = torch.as_tensor(points, dtype=dtype), torch.as_tensor(labels)
    return fv.split(pair, fv.Dirichlet(0.5), clients=clients, seed=1, test=pair)


def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(FEATURES, CLASSES).double()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


SETTINGS: dict[str, Any] = {
    "sampler": fv.Uniform(3), "work": fv.Epochs(2), "lr": 0.1, "batch_size": 8, "seed": 3, "workers": 1,
}  # fmt: skip


# --- The objective -----------------------------------------------------------------------------------------------------


def objective(problem: fv.SemiSupervised, data: fv.FederatedData, client: int, x: Tensor, y: Tensor) -> Tensor:
    """f_i(x, y_i) of a linear model, transcribed from the docstring term by term."""
    part, mask = data.part(client), problem.has_label(data)
    known, unknown = part[mask[part]], part[~mask[part]]
    counts = np.bincount(data.dataset.targets.numpy()[known], minlength=CLASSES) + 1
    log_prior = torch.tensor(np.log(counts / counts.sum()))
    W, b = x[: CLASSES * FEATURES].view(CLASSES, FEATURES), x[CLASSES * FEATURES :]
    log_q = torch.log_softmax(data.dataset.inputs @ W.T + b, 1)
    total = problem.decay / 2 * x @ x
    for j in known:
        total = total - log_q[j, data.dataset.targets[j]] / len(known)
    for j, row in zip(unknown, y, strict=True):
        inner = -row @ log_q[j] - problem.tau * row @ log_prior + problem.rho / 2 * row @ row
        total = total + problem.mu / len(unknown) * inner
    return total


def unknown_of(problem: fv.SemiSupervised, data: fv.FederatedData, client: int) -> np.ndarray:
    part = data.part(client)
    return part[~problem.has_label(data)[part]]


def slopes(*arguments: Any) -> tuple[Tensor, Tensor]:
    *rest, x, y = arguments
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    return torch.autograd.grad(objective(*rest, x, y), (x, y))


def project_rows(v: np.ndarray) -> np.ndarray:
    """Onto the simplex, by bisection on the threshold: nothing in common with sorting."""
    low, high = v.min(1) - 1, v.max(1)
    for _ in range(200):
        middle = (low + high) / 2
        too_much = np.maximum(v - middle[:, None], 0).sum(1) > 1
        low, high = np.where(too_much, middle, low), np.where(too_much, high, middle)
    return np.maximum(v - high[:, None], 0)


def test_a_run_is_gradient_descent_on_the_documented_objective() -> None:
    """Two clients in turn, full batches, several y-steps: against autograd on the transcription above."""
    data = small_data()
    problem = fv.SemiSupervised(
        linear(), hidden=0.7, mu=0.8, tau=0.6, rho=1.3, lr_y=0.7, steps_y=2, weight_decay=0.01, seed=5
    )
    gamma, a, d, eta, Q, cohorts = 0.4, 2.0, 1.5, 0.2, 3, [[1], [2], [1]]
    x0, lam, N = problem.initial(0), torch.zeros(18, dtype=torch.float64), data.clients
    lam_i = {i: torch.zeros_like(lam) for i in range(N)}
    y = {
        i: torch.full((len(unknown_of(problem, data, i)), CLASSES), 1 / CLASSES, dtype=torch.float64) for i in range(N)
    }
    for (i,) in cohorts:
        eta_y = problem.lr_y * len(y[i]) / (problem.mu * problem.rho)
        for _ in range(problem.steps_y):
            step = y[i] - eta_y * slopes(problem, data, i, x0, y[i])[1]
            y[i] = torch.tensor(project_rows(step.numpy()))
        x = x0.clone()
        for _ in range(Q):
            x = x - eta * (slopes(problem, data, i, x, y[i])[0] - lam_i[i] + gamma * (x - x0))
        lam_i[i] = lam_i[i] + a * gamma * (x0 - x)
        lam = lam + a * gamma * (x0 - x) / N
        x0 = x0 + d * (x - x0) / N - lam / gamma
    history = fv.simulate(
        fv.FedVRAU(gamma=gamma, a=a, d=d), problem=problem, data=data, sampler=fv.Replay(cohorts), work=fv.Steps(Q),
        lr=eta, rounds=3, workers=1,
    )  # fmt: skip
    assert float((history.x0 - x0).abs().max()) < 1e-10
    assert set(history.y) == {1, 2}
    for i, row in history.y.items():
        samples, labels = problem.pseudo_labels(data, i, row)
        assert samples.tolist() == unknown_of(problem, data, i).tolist()
        assert float((labels - y[i]).abs().max()) < 1e-10
    assert float(y[1].max()) > 0.5


def test_batches_are_weighted_so_that_steps_are_unbiased() -> None:
    """One epoch of batches at a standstill adds up to the full gradient; in truth each batch is as the stream draws it."""
    data = small_data(clients=2)
    problem = fv.SemiSupervised(linear(), hidden=0.8, seed=1)
    client, eta = 1, 1e-6
    part, mask = data.part(client), problem.has_label(data)
    x0 = problem.initial(3)
    history = fv.simulate(
        fv.FedAvg(), problem=problem, data=data, sampler=fv.Replay([[client]]), work=fv.Epochs(1), lr=eta, batch_size=12,
        seed=3, rounds=1, workers=1,
    )  # fmt: skip
    _, y = problem.pseudo_labels(data, client, history.y[client])
    targets = torch.zeros(len(data.dataset), CLASSES, dtype=torch.float64)
    known, unknown = part[mask[part]], part[~mask[part]]
    targets[known] = nn.functional.one_hot(data.dataset.targets[known], CLASSES).double() * len(part) / len(known)
    targets[unknown] = y * len(part) / len(unknown)
    moved = torch.zeros_like(x0)
    for index in batch_schedule(len(part), 12, 4, stream(3, Purpose.BATCHES, 0, client)):
        x = x0.clone().requires_grad_()
        rows = part[index]
        W, b = x[:15].view(CLASSES, FEATURES), x[15:]
        log_q = torch.log_softmax(data.dataset.inputs[rows] @ W.T + b, 1)
        moved -= eta * torch.autograd.grad(-(targets[rows] * log_q).sum() / len(rows), x)[0]
    assert float((history.x0 - x0 - moved).abs().max()) < 1e-9 * eta / 1e-6
    full = slopes(problem, data, client, x0, y)[0]
    assert float((moved / (4 * eta) + full).abs().max()) < 1e-9


@pytest.mark.parametrize(
    "change", [{"mu": 2.0}, {"tau": 0.0}, {"rho": 5.0}, {"lr_y": 0.3}, {"seed": 1}, {"hidden": 0.5}]
)
def test_every_parameter_bites(change: dict[str, Any]) -> None:
    def run(**options: Any) -> Tensor:
        problem = fv.SemiSupervised(linear(), **{"hidden": 0.8, **options})
        return fv.simulate(fv.FedVRAU(), problem=problem, data=small_data(), rounds=3, **SETTINGS).x0

    assert float((run() - run(**change)).abs().max()) > 1e-4


def test_steps_on_y_bite_where_one_is_not_enough() -> None:
    runs = [
        fv.simulate(
            fv.FedVRAU(),
            problem=fv.SemiSupervised(linear(), lr_y=0.3, steps_y=q),
            data=small_data(),
            rounds=3,
            **SETTINGS,
        ).x0
        for q in (1, 4)
    ]
    assert float((runs[0] - runs[1]).abs().max()) > 1e-4


def test_with_all_labels_it_is_supervised_learning() -> None:
    data, problem = small_data(), fv.SemiSupervised(linear(), hidden=0.0, weight_decay=0.01)
    ours = fv.simulate(fv.FedVRAU(), problem=problem, data=data, rounds=4, **SETTINGS)
    plain = fv.simulate(fv.FedVRAU(), problem=problem.supervised(), data=data, rounds=4, **SETTINGS)
    assert float((ours.x0 - plain.x0).abs().max()) < 1e-12
    assert not ours.y
    assert "pseudo_accuracy" not in ours.metrics[-1]


def test_the_gap_at_the_start_and_after_a_run() -> None:
    data, problem = small_data(), fv.SemiSupervised(linear(), hidden=0.8, weight_decay=0.1, lr_y=0.5)
    settings = {**SETTINGS, "batch_size": None, "work": fv.Steps(3), "observers": [fv.StationarityGap()]}
    history = fv.simulate(fv.FedVRAU(gamma=1, a=1), problem=problem, data=data, rounds=200, **settings)
    x0, expected, slope = problem.initial(3), 0.0, torch.zeros(18, dtype=torch.float64)
    cohort = history.metrics[0]["cohort"]
    first = fv.simulate(fv.FedVRAU(gamma=1, a=1), problem=problem, data=data, rounds=1, **settings)
    for i in range(data.clients):
        y = torch.full((len(unknown_of(problem, data, i)), CLASSES), 1 / CLASSES, dtype=torch.float64)
        eta_y = problem.lr_y * len(y) / (problem.mu * problem.rho)
        step = torch.tensor(project_rows((y - eta_y * slopes(problem, data, i, x0, y)[1]).numpy()))
        expected += float((step - y).square().sum()) / eta_y**2 / data.clients
        after = problem.pseudo_labels(data, i, first.y[i])[1] if i in cohort else y
        slope += slopes(problem, data, i, x0, after)[0] / data.clients
    expected += float(slope.square().sum())
    gaps = [m["stationarity_gap"] for m in history.metrics]
    assert gaps[0] == pytest.approx(expected, rel=1e-9)
    assert gaps[-1] < 1e-10 * gaps[0]


# --- Labels ------------------------------------------------------------------------------------------------------------


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), share=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_stratified_samples_are_in_proportion(labels: list[int], share: float, seed: int) -> None:
    samples, classes = np.arange(100, 100 + len(labels)), np.array(labels)
    chosen = stratified(samples, classes, share, np.random.default_rng(seed))
    assert len(chosen) == len(set(chosen.tolist())) == max(1, round(share * len(labels)))
    assert set(chosen.tolist()) <= set(samples.tolist())
    for c in range(5):
        expected = len(chosen) * (classes == c).mean()
        assert abs((classes[chosen - 100] == c).sum() - expected) < 1 + 1e-9


def test_a_tenth_of_every_client_keeps_its_label() -> None:
    data = fv.split(fv.load("digits"), fv.Dirichlet(0.2), clients=20, seed=0)
    problem = fv.SemiSupervised(linear(), seed=4)
    mask = problem.has_label(data)
    part = problem.labelled_part(data)
    assert part.clients == 20
    for i in range(20):
        kept = data.part(i)[mask[data.part(i)]]
        assert kept.tolist() == part.part(i).tolist()
        assert len(kept) == round(0.1 * len(data.part(i)))
    assert (problem.has_label(data) == mask).all()
    assert (replace(problem, seed=5).has_label(data) != mask).any()


def test_hidden_labels_have_no_influence() -> None:
    data = small_data()
    problem = fv.SemiSupervised(linear(), hidden=0.8)
    mask = torch.from_numpy(problem.has_label(data))
    lies = torch.where(mask, data.dataset.targets, (data.dataset.targets + 1) % CLASSES)
    liars = fv.FederatedData(replace(data.dataset, targets=lies), data.offsets, data.indices)
    fixed = replace(problem, labelled=mask.numpy())
    runs = [fv.simulate(fv.FedVRAU(), problem=fixed, data=each, rounds=3, **SETTINGS) for each in (data, liars)]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert runs[0].metrics[-1]["pseudo_accuracy"] != runs[1].metrics[-1]["pseudo_accuracy"]
    assert runs[0].metrics[-1]["pseudo_entropy"] == runs[1].metrics[-1]["pseudo_entropy"]


def test_a_mask_of_ones_own_is_followed() -> None:
    data = small_data()
    mask = np.arange(len(data.dataset)) % 3 == 0
    problem = fv.SemiSupervised(linear(), labelled=mask)
    assert (problem.has_label(data) == mask).all()
    history = fv.simulate(fv.FedAvg(), problem=problem, data=data, rounds=1, **SETTINGS)
    client = history.metrics[0]["cohort"][0]
    samples, _ = problem.pseudo_labels(data, client, history.y[client])
    assert set(samples % 3) == {1, 2}


def test_pseudo_labels_are_reported_as_they_are() -> None:
    data, problem = small_data(), fv.SemiSupervised(linear(), hidden=0.8, rho=4.0)
    history = fv.simulate(fv.FedVRAU(), problem=problem, data=data, rounds=3, **SETTINGS)
    right, entropy, count = 0, 0.0, 0
    for i, row in history.y.items():
        samples, labels = problem.pseudo_labels(data, i, row)
        p = labels.numpy()
        assert np.allclose(p.sum(1), 1)
        right += (p.argmax(1) == data.dataset.targets.numpy()[samples]).sum()
        entropy -= (p[p > 0] * np.log(p[p > 0])).sum()
        count += len(samples)
    assert history.metrics[-1]["pseudo_accuracy"] == pytest.approx(right / count)
    assert history.metrics[-1]["pseudo_entropy"] == pytest.approx(entropy / count)
    assert entropy > 0


# --- The engine --------------------------------------------------------------------------------------------------------


def figures(history: fv.History) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if "seconds" not in k} for m in history.metrics]


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
    assert figures(runs[0]) == figures(runs[1])
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
