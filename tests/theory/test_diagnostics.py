"""Diagnostics: the figures against direct computation, and that looking changes nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.callbacks.base import Run
from fedvra.callbacks.display import LiveView, PlainView
from fedvra.policies import auto
from fedvra.policies.pace import visits
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder
from fedvra.studies.execution import execute, resume
from quadratics import quadratic, unequal_weights

N, P = 6, 5
GAMMAS = [0.3, 0.5, 0.4, 0.6, 0.5, 0.7]
ALGORITHMS: dict[str, fv.Algorithm] = {
    "fedavg": fv.FedAvg(),
    "fedprox": fv.FedProx(mu=0.3),
    "fednova": fv.FedNova(),
    "scaffold": fv.Scaffold(),
    "vrlsgd": fv.VRLSGD(),
    "fedadmm": fv.FedADMM(gamma=0.5),
    "fedpd": fv.FedPD(gamma=0.5, skip=0.4),
    "feddyn": fv.FedDyn(alpha=0.5),
    "fedvra": fv.FedVRA(gamma=GAMMAS, a=3),
    "fedvra-u": fv.FedVRAU(gamma=GAMMAS, a=3),
}
NO_DUALS = ("fedavg", "fedprox", "fednova")
INSTANCES = ("fedadmm", "feddyn", "fedvra", "fedvra-u")
DROP = 0.2


class Watch(fv.Observer):
    """x0, lam and every lam_i before and after each round."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    def before(self, federation: Any) -> None:
        self.seen.append([self._copy(federation)])

    def after(self, federation: Any, seen: None) -> dict[str, Any]:
        self.seen[-1].append(self._copy(federation))
        return {}

    @staticmethod
    def _copy(federation: Any) -> tuple[Any, ...]:
        state, duals = federation.state, federation.clients.duals
        return state.x0.numpy().copy(), state.lam.numpy().copy(), np.stack([duals.get(i).numpy() for i in range(N)])


def settings(name: str) -> dict[str, Any]:
    everyone = REGISTRY.get(name).everyone_takes_part
    A, b = quadratic(N, P)
    return {
        "problem": fv.Quadratic(A, b),
        "sampler": fv.Full() if everyone else fv.Bernoulli([0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        "work": fv.Steps([2, 3, 1, 4, 2, 5]),
        "lr": [0.02, 0.03, 0.04, 0.05, 0.06, 0.02],
        "weights": unequal_weights(N),
        "drop": 0.0 if everyone else DROP,
        "rounds": 9,
        "seed": 3,
        "workers": 1,
    }


def test_every_algorithm_is_here() -> None:
    assert set(ALGORITHMS) == {n for n, kind in REGISTRY.items() if kind.__module__.startswith("fedvra.algorithms.")}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_against_direct_computation(name: str) -> None:
    """Everything from its formula, in float64, with whole vectors: for every algorithm, with nothing equal for two clients."""
    given, watch = settings(name), Watch()
    history = fv.simulate(ALGORITHMS[name], diagnostics=3, observers=[watch], **given)
    A, b, omega = given["problem"].A.numpy(), given["problem"].b.numpy(), given["weights"]
    steps, eta = np.array([2, 3, 1, 4, 2, 5]), np.array(given["lr"])
    p = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) * (1 - DROP)
    assert [m["round"] for m in history.metrics if "diagnostics" in m] == [3, 6, 9]
    for r in (2, 5, 8):
        found = history.metrics[r]["diagnostics"]
        (x_old, lam_old, duals_old), (x, lam, duals) = watch.seen[r]
        g = A @ x - b
        mean = omega @ g
        assert found["grad_norm2"] == pytest.approx(mean @ mean, rel=1e-9)
        assert found["variance_before"] == pytest.approx(omega @ ((g - mean) ** 2).sum(1), rel=1e-9)
        gamma = np.array(GAMMAS if "fedvra" in name else [0.3 if name == "fedprox" else 0.5] * N)
        kappa = 1 / (omega @ gamma) if name in (*INSTANCES, "fedpd") else 0.0
        sigma = float(name in ("scaffold", "vrlsgd"))
        c = g - duals + (sigma + gamma * kappa)[:, None] * lam
        assert found["variance_after"] == pytest.approx(omega @ ((c - omega @ c) ** 2).sum(1), rel=1e-9)
        xi = ((g - duals) ** 2).sum(1)
        if name in NO_DUALS:
            assert "xi" not in found
            assert found["variance_after"] == pytest.approx(found["variance_before"])
        else:
            assert found["xi"] == pytest.approx(omega @ xi, rel=1e-9)
        if name in INSTANCES:
            a = {"fedadmm": 1, "feddyn": 1}.get(name, 3)
            C2 = a * (1 - (1 - gamma * eta) ** steps)
            cost = omega @ (((A @ x) @ x) / 2 - b @ x)
            assert found["potential"] == pytest.approx(cost + omega @ (4 * kappa * xi / (p * C2)), rel=1e-9)
        elif name != "fedpd":
            assert "potential" not in found
        if kappa and (x != x_old).any():
            move = x - x_old
            assert found["momentum"] == pytest.approx(-kappa * (lam_old @ move) / (move @ move), rel=1e-9)
        else:
            assert "momentum" not in found
        cohort = history.metrics[r]["cohort"]
        if name != "fedpd":  # whose anchors are its own
            pull = np.zeros(N) if name in ("fedavg", "fednova", "scaffold", "vrlsgd") else gamma
            squares = []
            for i in cohort:
                z = x_old.copy()
                for _ in range(steps[i]):
                    h = duals_old[i] - sigma * lam_old
                    z = z - eta[i] * (A[i] @ z - b[i] - h + pull[i] * (z - x_old))
                squares.append(((z - x_old) ** 2).sum())
            assert found["drift"] == pytest.approx(np.average(squares, weights=omega[cohort]), rel=1e-9)


def test_own_anchors_count_in_the_drift() -> None:
    """FedPD in a round after one without communication: clients begin elsewhere, and the distance is from the server's x0."""
    given = {**settings("fedpd"), "drop": 0.0, "rounds": 12}
    history = fv.simulate(ALGORITHMS["fedpd"], diagnostics=1, keep="x0", **given)
    x = history.trajectory
    assert x is not None
    skipped = [r for r in range(1, 12) if torch.equal(x[r], x[r - 1])]
    assert 0 < len(skipped) < 11
    for r in skipped:
        assert "momentum" not in history.metrics[r]["diagnostics"]
    assert all(m["diagnostics"]["drift"] > 0 for m in history.metrics)


def test_a_round_without_anybody() -> None:
    A, b = quadratic(N, P)
    history = fv.simulate(
        fv.FedVRA(), problem=fv.Quadratic(A, b), sampler=fv.Replay([[0, 1], [], [2]]), work=fv.Steps(2), rounds=3,
        diagnostics=1, workers=1,
    )  # fmt: skip
    seen = [set(m["diagnostics"]) for m in history.metrics]
    assert {"drift", "momentum"} <= seen[0] & seen[2]
    assert not {"drift", "momentum"} & seen[1]
    assert {"grad_norm2", "xi", "variance_before"} <= seen[1]


def test_stepsizes_that_adapt_are_those_of_the_round() -> None:
    """beta and C_2 of the potential under auto, from the multiplier that the record shows."""
    A, b = quadratic(N, P)
    steps, eta, rounds, p = 3, 0.05, 8, 2 / N
    history = fv.simulate(
        fv.FedVRA(), problem=fv.Quadratic(A, b), sampler=fv.Uniform(2), work=fv.Steps(steps), lr=eta, rounds=rounds,
        diagnostics=1, keep="x0", workers=1,
    )  # fmt: skip
    multipliers = [m["multiplier"] for m in history.metrics]
    assert len(set(multipliers)) > 2
    for r, m in enumerate(history.metrics):
        n = visits(auto, p)
        kappa = n * m["multiplier"] / p * (eta * steps)
        C2 = kappa / (n * eta * steps) * (1 - (1 - eta / kappa) ** steps)
        x = history.trajectory[r].numpy()
        cost = (((A @ x) @ x) / 2 - b @ x).mean()
        found = m["diagnostics"]
        assert found["potential"] == pytest.approx(cost + 4 * kappa * found["xi"] / (p * C2), rel=1e-9)


def test_probabilities_that_are_not_known() -> None:
    """A replayed log may say p of those who took part alone: the potential, which needs all, is then left out."""
    A, b = quadratic(N, P)
    history = fv.simulate(
        fv.FedVRA(), problem=fv.Quadratic(A, b), sampler=fv.Replay([[0, 1], [2, 5]], [[0.5, 0.2], [0.3, 0.9]]),
        work=fv.Steps(2), rounds=2, diagnostics=1, workers=1,
    )  # fmt: skip
    for m in history.metrics:
        assert "potential" not in m["diagnostics"]
        assert m["diagnostics"]["xi"] > 0


def test_many_clients_are_sampled_and_it_is_said() -> None:
    A, b = quadratic(40, 3)
    given: dict[str, Any] = {"problem": fv.Quadratic(A, b), "sampler": fv.Uniform(20), "work": fv.Steps(1), "rounds": 2,
                             "workers": 1}  # fmt: skip
    few = fv.simulate(fv.FedVRA(), observers=[fv.Diagnostics(1, clients=30)], **given).metrics
    every = fv.simulate(fv.FedVRA(), observers=[fv.Diagnostics(1, clients=40)], **given).metrics
    for m, n in zip(few, every, strict=True):
        assert m["diagnostics"]["clients"] == 30
        assert "clients" not in n["diagnostics"]
        assert m["diagnostics"]["variance_before"] == pytest.approx(n["diagnostics"]["variance_before"], rel=0.3)
        assert m["diagnostics"]["variance_before"] != n["diagnostics"]["variance_before"]


@pytest.mark.parametrize("wrong", [-1, 1.5, True])
def test_bad_intervals_are_refused(wrong: Any) -> None:
    with pytest.raises(fv.UsageError, match="diagnostics"):
        fv.simulate(fv.FedAvg(), **{**settings("fedavg"), "rounds": 1}, diagnostics=wrong)


# -- looking changes nothing -----------------------------------------------------------------------------------------------


def blobs(clients: int = 8) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    inputs = (rng.normal(size=(3, 6))[labels] + rng.normal(size=(200, 6))).astype(np.float32)
    return fv.split(
        (inputs[:160], labels[:160]), fv.Dirichlet(0.5), clients=clients, seed=1, test=(inputs[160:], labels[160:])
    )


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


SUPERVISED: dict[str, Any] = {"sampler": fv.Uniform(4), "work": fv.Epochs(2), "lr": 0.05, "batch_size": 7, "rounds": 6}
CASES: dict[str, Any] = {
    "block": (fv.FedVRA(), {"problem": fv.Supervised(small, weight_decay=1e-3), "data": blobs(), **SUPERVISED}),
    "traced": (
        fv.Scaffold(),
        {"problem": fv.Supervised(small), "data": blobs(), **SUPERVISED, "solver": fv.SolverSettings(path="traced")},
    ),
    "eager, buffers of one's own": (
        fv.FedVRA(),
        {"problem": fv.Supervised(noisy, buffers="local"), "data": blobs(), **SUPERVISED},
    ),
    "averaged buffers": (fv.FedAvg(), {"problem": fv.Supervised(noisy, buffers="average"), "data": blobs(), **SUPERVISED}),
    "power of choice": (
        fv.FedDyn(),
        {"problem": fv.Supervised(small), "data": blobs(), **SUPERVISED, "sampler": fv.PowerOfChoice(3, 6)},
    ),
    "pseudo-labels": (fv.FedVRAU(gamma=0.5), {"problem": fv.SemiSupervised(small, hidden=0.5), "data": blobs(), **SUPERVISED}),
    "bfloat16 state": (
        fv.FedVRA(),
        {"problem": fv.Supervised(small), "data": blobs(), **SUPERVISED, "state_dtype": torch.bfloat16},
    ),
    "quadratics": (fv.FedPD(gamma=0.5, skip=0.3), {**settings("fedpd"), "drop": 0.0}),
}  # fmt: skip


def plain(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if "seconds" not in k and k != "diagnostics"} for m in metrics]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("workers", [1, 2])
def test_not_a_bit_of_the_run_changes(name: str, workers: int) -> None:
    algorithm, given = CASES[name]
    given = {**given, "workers": workers}
    without = fv.simulate(algorithm, **given)
    watched = fv.simulate(algorithm, diagnostics=1, **given)
    assert torch.equal(without.x0, watched.x0)
    assert torch.equal(without.lam, watched.lam)
    assert without.duals.keys() == watched.duals.keys()
    assert all(torch.equal(row, watched.duals[i]) for i, row in without.duals.items())
    assert all(torch.equal(row, watched.y[i]) for i, row in without.y.items())
    assert plain(without.metrics) == plain(watched.metrics)
    for m in watched.metrics:
        assert all(np.isfinite(value) for value in m["diagnostics"].values())
        assert {"grad_norm2", "variance_before", "variance_after", "drift"} <= set(m["diagnostics"])


def test_the_number_of_workers_does_not_change_them() -> None:
    algorithm, given = CASES["block"]
    one, two = (fv.simulate(algorithm, diagnostics=2, **given, workers=w).metrics for w in (1, 2))
    assert [m.get("diagnostics") for m in one] == [m.get("diagnostics") for m in two]


def test_they_survive_a_stop(tmp_path: Path) -> None:
    base = {"task": "digits", "clients": 8, "cohort": 3, "epochs": 1, "diagnostics": 2, "workers": 1, "model": "linear"}
    execute(configure(base, {"rounds": 6}), tmp_path / "straight")
    execute(configure(base, {"rounds": 3}), tmp_path / "stopped")
    resume(tmp_path / "stopped", rounds=6)
    straight, stopped = (RunFolder(tmp_path / name).metrics() for name in ("straight", "stopped"))
    assert [m.get("diagnostics") for m in straight] == [m.get("diagnostics") for m in stopped]
    assert plain(straight) == plain(stopped)
    assert [("diagnostics" in m) for m in straight] == [False, True] * 3


# -- what they show --------------------------------------------------------------------------------------------------------


def test_variance_falls_with_duals_and_stays_without() -> None:
    """The paper's main claim, where it can be seen: at x0, of clients whose gradients differ also at the minimiser."""
    after = {}
    for name in ("fedvra", "scaffold", "feddyn", "fedavg"):
        given = {**settings(name), "rounds": 80, "drop": 0.0, "work": fv.Steps(5), "lr": 0.02, "weights": "equal"}
        algorithm = fv.FedVRA(gamma=0.5, a=3) if name == "fedvra" else ALGORITHMS[name]
        history = fv.simulate(algorithm, **given, diagnostics=80)
        found = history.metrics[-1]["diagnostics"]
        after[name] = found["variance_after"] / found["variance_before"]
    assert after["fedavg"] == pytest.approx(1)
    assert max(after["fedvra"], after["scaffold"], after["feddyn"]) < 0.02


def test_the_display_shows_the_last_ones() -> None:
    record = {"round": 1, "test_accuracy": 0.5, "test_loss": 1.0, "train_loss": 1.0, "seconds": 1.0, "cohort": [1]}
    diagnosed = {**record, "round": 2, "diagnostics": {"xi": 12.345, "grad_norm2": 0.5}}
    console = Console(width=120, record=True, force_terminal=False)
    view = PlainView(console, lines=4)
    run = Run(4, title="FedVRA")
    view.on_start(run)
    for each in (record, diagnosed, {**record, "round": 3}):
        view.on_round(run, each)
    view.on_end(run)
    text = console.export_text()
    assert text.count("after round 2:") == 1
    assert "Xi 12.3" in text
    assert "momentum" not in text
    live = LiveView(Console(width=120, force_terminal=True, file=io.StringIO()))
    run = Run(4, title="FedVRA", records=[diagnosed])
    live.on_start(run)
    shown = Console(width=120, record=True)
    shown.print(live._picture())
    live.on_end(run)
    assert "|grad f|^2 0.5" in shown.export_text()
