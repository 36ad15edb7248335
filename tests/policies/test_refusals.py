"""Rules that refuse uploads: what they refuse, and that whatever they refuse leaves the duals exact."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedvra as fv
from fedvra.cli import main
from fedvra.policies.refusals import Refusal, parse_refusal, refused
from fedvra.runs.config import build, configure

N, ATTACKERS = 20, (0, 1, 2, 3)


def quadratic(spread: float = 0.1) -> fv.Quadratic:
    """Twenty clients, of which four pull with ten thousand times the strength of the others."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(N, 6, 6))
    b = rng.normal(size=(N, 6))
    b[list(ATTACKERS)] *= 1e4
    return fv.Quadratic(torch.as_tensor(spread * root @ root.transpose(0, 2, 1) / 6 + np.eye(6)), torch.as_tensor(b))


def honest_minimiser(problem: fv.Quadratic) -> torch.Tensor:
    honest = [i for i in range(N) if i not in ATTACKERS]
    return torch.linalg.solve(problem.A[honest].sum(0), problem.b[honest].sum(0))


def run(refuse: Refusal | None, algorithm: fv.Algorithm | None = None, **options: Any) -> fv.History:
    given = {"problem": quadratic(), "sampler": fv.Full(), "work": fv.Steps(5), "lr": 0.05, "rounds": 250, "workers": 1}
    return fv.simulate(algorithm or fv.FedVRA(gamma=1.0, a=1), refuse=refuse, **{**given, **options})


def gap(history: fv.History) -> float:
    """|lam - sum omega_i lam_i|"""
    total = sum((history.omega[i] * lam_i for i, lam_i in history.duals.items()), torch.zeros_like(history.lam))
    return float((history.lam - total).norm())


ALGORITHMS = [fv.FedVRA(gamma=1.0, a=1), fv.FedVRA(), fv.Scaffold(), fv.FedDyn(alpha=1.0)]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("rule", [fv.MedianNorm(3), fv.MultiKrum(4)], ids=repr)
def test_with_four_attackers_of_twenty_the_solution_is_that_of_the_others(
    rule: Refusal, algorithm: fv.Algorithm
) -> None:
    history = run(rule, algorithm)
    assert all(set(ATTACKERS) <= set(record["refused"]) for record in history.metrics)
    assert not set(history.duals) & set(ATTACKERS)  # rolled back, every time
    assert gap(history) < 1e-12
    assert float((history.x0 - honest_minimiser(quadratic())).norm()) < 1e-10


def test_without_a_rule_they_have_it_their_way() -> None:
    history = run(None)
    assert float((history.x0 - honest_minimiser(quadratic())).norm()) > 100
    assert "refused" not in history.metrics[0]


@pytest.mark.parametrize("rule", [fv.MedianNorm(1), fv.MultiKrum(8), fv.MultiKrum(9)], ids=repr)
def test_a_rule_that_refuses_half_or_all_of_them_breaks_nothing(rule: Refusal) -> None:
    history = run(rule, problem=quadratic(spread=1.0), sampler=fv.Uniform(20), drop=0.1, rounds=30, seed=3)
    assert gap(history) < 1e-12
    assert bool(torch.isfinite(history.x0).all())


def test_a_rule_that_refuses_nobody_changes_nothing_but_rounding() -> None:
    options: dict[str, Any] = {"sampler": fv.Bernoulli(0.5), "weights": list(range(1, N + 1)), "rounds": 20}
    left, right = run(None, **options), run(fv.MedianNorm(1e9), **options)
    np.testing.assert_allclose(left.x0, right.x0, rtol=1e-9)
    np.testing.assert_allclose(left.lam, right.lam, rtol=1e-9, atol=1e-9)
    assert [m["bytes_up"] for m in left.metrics] == [m["bytes_up"] for m in right.metrics]


def test_the_result_does_not_depend_on_the_number_of_workers() -> None:
    one, three = (run(fv.MedianNorm(3), workers=workers, rounds=10) for workers in (1, 3))
    assert torch.equal(one.x0, three.x0)
    assert torch.equal(one.lam, three.lam)


def test_more_clients_than_there_are_places_for_sums() -> None:
    rng = np.random.default_rng(0)
    A, b = np.eye(3)[None].repeat(150, 0), rng.normal(size=(150, 3))
    b[7] = 1e5
    problem = fv.Quadratic(torch.as_tensor(A), torch.as_tensor(b))
    history = run(fv.MedianNorm(5), problem=problem, rounds=3)
    assert all(record["refused"] == record["lost"] == [7] for record in history.metrics)
    assert gap(history) < 1e-12


def test_a_network_with_buffers_and_one_client_that_went_mad() -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(3, size=240)
    inputs = (rng.normal(size=(3, 5))[targets] + rng.normal(size=(240, 5))).astype(np.float32)
    inputs[:30] *= 1e37  # overflows in the first layer
    data = fv.split((inputs, targets), fv.ByColumn(np.arange(240) // 30), clients=8, seed=0)

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    for rule in (fv.MedianNorm(50), fv.MultiKrum(1)):
        history = run(rule, problem=fv.Supervised(model, buffers="average"), data=data, batch_size=10, rounds=4)
        assert all(
            0 in record["refused"] for record in history.metrics
        )  # for its buffers: normalised, its moves look well
        assert bool(torch.isfinite(history.x0).all())
        assert history.aux is not None
        assert bool(torch.isfinite(history.aux).all())
        assert gap(history) < 1e-6


# -- the rules ----------------------------------------------------------------------------------------------------------------


def textbook_krum(uploads: np.ndarray[Any, Any], f: int) -> list[int]:
    """Those Multi-Krum keeps, from its definition."""
    m = len(uploads)
    scores = []
    for i in range(m):
        distances = sorted(float(((uploads[i] - uploads[j]) ** 2).sum()) for j in range(m) if j != i)
        scores.append(sum(distances[: m - f - 2]))
    return sorted(sorted(range(m), key=lambda i: scores[i])[: m - f])


@pytest.mark.parametrize(("m", "f"), [(5, 1), (7, 2), (12, 3), (11, 4)])
def test_multi_krum_is_the_published_one(m: int, f: int) -> None:
    uploads = np.random.default_rng(m).normal(size=(m, 9))
    uploads[:f] *= 5
    mask = refused(fv.MultiKrum(f), torch.as_tensor(uploads), np.ones(m))
    assert np.flatnonzero(~mask).tolist() == textbook_krum(uploads, f)


@pytest.mark.parametrize("m", range(1, 7))
def test_too_few_for_multi_krum_are_all_refused(m: int) -> None:
    assert refused(fv.MultiKrum(2), torch.randn(m, 3), np.ones(m)).all()


def test_unequal_work_is_no_attack() -> None:
    """Twenty times the steps, and so a move twenty times as long, in the same direction."""
    moves = torch.tensor([[1.0, 0], [1.1, 0], [0.9, 0], [20.0, 0], [1.0, 0.1]])
    for rule in (fv.MedianNorm(3), fv.MultiKrum(1)):
        assert refused(rule, moves, np.ones(5))[3]
        assert not refused(rule, moves, np.array([1, 1, 1, 20, 1.0]))[3]


@pytest.mark.parametrize("rule", [fv.MedianNorm(3), fv.MultiKrum(1)], ids=repr)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e300])
def test_what_is_not_finite_never_counts(rule: Refusal, poison: float) -> None:
    moves = torch.ones(7, 2, dtype=torch.float64)
    moves[2, 1] = poison
    mask = refused(rule, moves, np.full(7, 0.1))
    assert mask[2]
    assert refused(rule, torch.full((3, 2), np.nan), np.ones(3)).all()


def test_trimming_each_coordinate_would_break_the_invariant() -> None:
    """Why it is not offered: the server counts a vector nobody sent, and every client moves its dual by the one it did."""
    rng = np.random.default_rng(0)
    moves, alpha = rng.normal(size=(5, 3)), 0.5
    trimmed = np.sort(moves, axis=0)[1:-1].mean(0)
    gaps = [
        np.linalg.norm(-alpha * trimmed - sum(-alpha * moves[i] for i in kept) / len(kept))
        for size in range(1, 6)
        for kept in combinations(range(5), size)
    ]
    assert min(gaps) > 1e-3  # no choice of whose dual to roll back closes it


# -- from outside -------------------------------------------------------------------------------------------------------------


def test_the_command_line_and_config_files() -> None:
    assert build(configure({"task": "digits", "refuse": "multi-krum:2"})).refuse == fv.MultiKrum(2)
    assert "refuse" not in configure({"task": "digits"}).to_dict()
    assert configure({"task": "digits", "refuse": "median-norm:3"}).flat(deciding=True)["refuse"] == "median-norm:3"


@pytest.mark.parametrize("text", ["median", "median-norm:x", "median-norm:0.5", "multi-krum:0", "multi-krum:1.5"])
def test_names_that_are_no_rule(text: str) -> None:
    with pytest.raises(fv.UsageError):
        parse_refusal(text)


@pytest.mark.parametrize("rule", ["median-norm:3", 3, fv.MedianNorm])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(fv.UsageError, match="refuse must be a rule"):
        run(rule)


def test_methods_for_everybody_can_refuse_nobody() -> None:
    with pytest.raises(fv.UsageError, match="cannot refuse any"):
        run(fv.MedianNorm(3), fv.VRLSGD())


def test_a_run_on_disk_names_the_refused(tmp_path: Path) -> None:
    words = ["run", "digits", "--rounds", "2", "--refuse", "median-norm:1", "--eval-every", "0", "--workers", "1"]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(records) == 2
    assert all(len(json.loads(line)["refused"]) == 5 for line in records)
