"""Semi-supervised learning: the objective as documented, and hidden labels that stay hidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.streams import Purpose, stream
from fedvra.data.batches import batch_schedule
from fedvra.problems.semisupervised import stratified
from few_labels import CLASSES, FEATURES, SETTINGS, linear, project_rows, slopes, small_data, unknown_of

# --- The objective -----------------------------------------------------------------------------------------------------


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
