"""Runs with compressed messages: where they converge to, what the duals add up to, and the same bits however they are made."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.core.compressor import Compressor
from fedvra.runs.files import RunFolder
from quadratics import quadratic

N, P = 8, 40
WITH_DUALS: dict[str, fv.Algorithm] = {
    "fedvra": fv.FedVRA(gamma=0.5, a=2, d=1),
    "auto": fv.FedVRA(),
    "feddyn": fv.FedDyn(alpha=1.0),
    "fedadmm": fv.FedADMM(gamma=1.0),
    "scaffold": fv.Scaffold(),
}
EVERYBODY: dict[str, fv.Algorithm] = {"fedpd": fv.FedPD(gamma=1.0), "vrlsgd": fv.VRLSGD()}
SMALL: list[Compressor] = [fv.Quantize(4), fv.Quantize(2), fv.Quantize(2, rounding="nearest")]


@cache
def costs() -> fv.Quadratic:
    A, b = quadratic(N=N, P=P)
    return fv.Quadratic(torch.from_numpy(A), torch.from_numpy(b))


def run(algorithm: fv.Algorithm, compress: Any, rounds: int = 400, **options: Any) -> fv.History:
    usual = {"sampler": fv.Uniform(4), "work": fv.Steps(4), "lr": 0.05, "workers": 1, "progress": False}
    return fv.simulate(algorithm, problem=costs(), rounds=rounds, compress=compress, **{**usual, **options})


def distance(history: fv.History) -> float:
    return float((history.x0 - costs().minimiser()).norm())


def gap(history: fv.History) -> float:
    total = sum(float(history.omega[i]) * row for i, row in history.duals.items())
    return float((history.lam - total).norm())


# -- the dual is the error feedback -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", SMALL, ids=lambda c: c.text())
@pytest.mark.parametrize("name", [*WITH_DUALS, *EVERYBODY])
def test_rows_with_duals_reach_the_minimiser(name: str, compress: Compressor) -> None:
    everybody = name in EVERYBODY
    options = {"sampler": fv.Full()} if everybody else {}
    history = run(
        (EVERYBODY if everybody else WITH_DUALS)[name], compress, rounds=600 if name == "auto" else 400, **options
    )
    assert distance(history) < 1e-9
    assert gap(history) < 1e-13


def test_a_few_of_the_greatest_numbers_suffice() -> None:
    for compress in (fv.TopK(0.1), fv.Chain(fv.TopK(0.2), fv.Quantize(4))):
        assert distance(run(fv.FedVRA(), compress, rounds=2500)) < 1e-9


def test_a_compressor_is_needed_for_these_to_be_tests() -> None:
    """Two bits change the course of a run from the first round on, and FedAvg stops at its own bias, compressed or not."""
    whole, coarse = (run(WITH_DUALS["fedvra"], c, rounds=1).x0 for c in (None, fv.Quantize(2)))
    assert float((whole - coarse).norm()) > 1e-3 * float(whole.norm())
    assert distance(run(fv.FedAvg(), None)) > 0.1


@pytest.mark.parametrize("name", WITH_DUALS)
def test_the_invariant_holds_when_replies_are_lost(name: str) -> None:
    history = run(WITH_DUALS[name], fv.Quantize(2), rounds=200, drop=0.3)
    assert gap(history) < 1e-13 * max(1.0, float(history.lam.norm()))


def test_the_dual_moves_by_what_was_sent_and_not_by_more() -> None:
    """After one round from zero duals lam_i = -alpha*C(D_i), so it lies on the grid of its block: multiples of a third."""
    history = run(fv.FedVRA(gamma=0.5, a=2, d=1), fv.Quantize(3), rounds=1)
    for _, row in history.duals.items():
        levels = 3 * row / row.abs().max()
        assert torch.allclose(levels, levels.round(), atol=1e-12)


# -- rows without duals keep a residual -------------------------------------------------------------------------------------


def test_a_residual_makes_up_for_what_was_left_out() -> None:
    """FedAvg with the greatest tenth stays near FedAvg's own end; the same uploads without memory drift away."""
    whole = run(fv.FedAvg(), None, sampler=fv.Full(), rounds=1000, lr=0.01).x0
    with_memory = run(fv.FedAvg(), fv.TopK(0.1), sampler=fv.Full(), rounds=1000, lr=0.01).x0
    assert float((with_memory - whole).norm()) < 0.3 * _without_memory(whole)


def _without_memory(whole: torch.Tensor) -> float:
    """How far FedAvg ends from ``whole`` when each client sends TopK(D_i) and forgets the rest, written out by hand."""
    A, b = costs().A, costs().b
    x0 = torch.zeros(P, dtype=torch.float64)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        x = x0.repeat(N, 1)
        for _ in range(4):
            x = x - 0.01 * (torch.einsum("npq,nq->np", A, x) - b)
        x0 = x0 + torch.stack([fv.TopK(0.1).apply(row - x0, rng) for row in x]).mean(0)
    return float((x0 - whole).norm())


def test_residuals_stay_bounded_at_two_bits() -> None:
    """Rounded at random, two bits do not contract, and a residual of that would grow without bound."""
    history = run(fv.FedAvg(), fv.Quantize(2), rounds=400)
    assert distance(history) < 3 * distance(run(fv.FedAvg(), None))


def test_a_residual_is_dropped_with_the_reply_that_was_lost() -> None:
    """With every reply lost but one client's, the others have nothing to remember."""
    federation = fv.Federation(
        fv.Experiment(fv.FedAvg(), costs(), fv.Full(), fv.Steps(2), lr=0.05, drop=0.6, compress=fv.TopK(0.1)), workers=1
    )
    record = federation.round()
    counted = sorted(set(record["cohort"]) - set(record["lost"]))
    assert 0 < len(counted) < N
    assert federation.clients.residuals is not None
    assert federation.clients.residuals.clients() == counted
    federation.close()


def test_rows_with_duals_keep_no_residual() -> None:
    federation = fv.Federation(
        fv.Experiment(fv.FedVRA(), costs(), fv.Full(), fv.Steps(2), lr=0.05, compress=fv.TopK(0.1)), workers=1
    )
    federation.round()
    assert federation.clients.residuals is not None
    assert len(federation.clients.residuals) == 0
    federation.close()


# -- downloads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("down", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", WITH_DUALS)
def test_a_rounded_download_costs_what_was_rounded_off_and_no_invariant(name: str, down: str) -> None:
    history = run(WITH_DUALS[name], fv.Quantize(4), compress_down=down)
    assert distance(history) < (0.02 if down == "int8" else 0.01) * float(costs().minimiser().norm())
    assert gap(history) < 1e-13


def test_moves_are_relative_to_the_rounded_model() -> None:
    """Nobody moves where lr is next to nothing: relative to the exact x0 the rounding itself would be sent up."""
    start = torch.linspace(0.9, 1.1, P, dtype=torch.float64)
    for down in ("bfloat16", "int8"):
        history = run(fv.FedAvg(), None, rounds=3, lr=1e-14, x_init=start, compress_down=down)
        assert float((history.x0 - start).abs().max()) < 1e-12


# -- the same bits, whoever computes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [fv.FedVRA(), fv.FedAvg(), fv.Scaffold()], ids=lambda a: a.name)
def test_workers_do_not_matter(algorithm: fv.Algorithm) -> None:
    one, two = (
        run(algorithm, fv.Quantize(2), rounds=8, workers=k, compress_down=fv.Quantize(8, rounding="stochastic"))
        for k in (1, 2)
    )
    assert torch.equal(one.x0, two.x0)
    assert torch.equal(one.lam, two.lam)


@pytest.mark.parametrize("algorithm", [fv.FedVRA(), fv.FedAvg()], ids=lambda a: a.name)
def test_a_run_is_resumed_with_its_residuals(algorithm: fv.Algorithm, tmp_path: Path) -> None:
    options = {"compress": fv.TopK(0.1), "compress_down": "int8"}
    whole = run(algorithm, rounds=6, **options)
    run(algorithm, rounds=3, out=tmp_path, checkpoint_every=3, report=False, **options)
    again = run(algorithm, rounds=6, out=tmp_path, checkpoint_every=3, report=False, **options)
    assert torch.equal(whole.x0, again.x0)
    config = RunFolder(tmp_path).config()
    assert (config.compress, config.compress_down) == ("topk:share=0.1", "quantize:bits=8,rounding=nearest")


def test_another_compressor_is_another_run(tmp_path: Path) -> None:
    run(fv.FedVRA(), fv.Quantize(4), rounds=2, out=tmp_path, report=False)
    with pytest.raises(fv.UsageError, match="compress"):
        run(fv.FedVRA(), fv.Quantize(2), rounds=2, out=tmp_path, report=False)


def test_one_local_step_forms_its_moves() -> None:
    """The path on which D_i is never written down steps aside; moves are those of one client at a time, up to bfloat16."""
    data = fv.split(fv.load("digits"), fv.Dirichlet(0.2), clients=10, seed=0)
    found = []
    for path in ("block", "traced"):
        history = fv.simulate(
            fv.FedVRA(gamma=0.1, a=10, d=2),
            problem=fv.Supervised(_model),
            data=data,
            sampler=fv.Full(),
            work=fv.Steps(1),
            lr=0.1,
            batch_size=20,
            rounds=3,
            compress=fv.BFloat16(),
            solver=fv.SolverSettings(path=path),
            workers=1,
            progress=False,
        )
        found.append(history.x0)
    assert float((found[0] - found[1]).abs().max()) < 1e-3
    assert float((found[0] - found[1]).abs().mean()) < 1e-6


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10))


# -- what is counted, and what cannot be ------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_messages() -> None:
    plain, small = (run(fv.Scaffold(), c, rounds=1, compress_down=d) for c, d in ((None, None), ("quantize:2", "int8")))
    assert plain.metrics[0]["bytes_up"] == 4 * (8 * P + 8)
    assert plain.metrics[0]["bytes_down"] == 4 * 2 * 8 * P
    assert small.metrics[0]["bytes_up"] == 4 * (P * 2 // 8 + 8 + 8)  # codes, one scale, the loss
    assert small.metrics[0]["bytes_down"] == 4 * 2 * (P + 8)
    assert small.metrics[0]["bytes_up_original"] == plain.metrics[0]["bytes_up_original"]


def test_rounds_without_communication_are_refused() -> None:
    with pytest.raises(fv.UsageError, match="skip"):
        run(fv.FedPD(gamma=1.0, skip=0.5), fv.Quantize(4), rounds=1, sampler=fv.Full())
