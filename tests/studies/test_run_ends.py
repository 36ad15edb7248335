"""Runs that cannot go on: each says why in one sentence, and what there was by then is not lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core.errors import DivergedError, UsageError
from quadratics import quadratic

N = 6
NOBODY = "weights that sum to zero"


def run(algorithm: fv.Algorithm | None = None, **options: Any) -> fv.History:
    given = {"problem": fv.Quadratic(*quadratic(N, 4)), "sampler": fv.Uniform(3), "work": fv.Steps(2), "rounds": 4}
    return fv.simulate(algorithm or fv.FedVRA(), **{"lr": 0.05, "workers": 1, **given, **options})


def data() -> fv.FederatedData:
    rng = np.random.default_rng(0)
    return fv.split((rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3), fv.IID(), clients=N)


# -- a cohort without weight ------------------------------------------------------------------------------------------------

LIGHT = {"weights": [0, 0, 0, 1, 1, 1], "sampler": fv.Replay([[3, 4], [0, 1], [4, 5]]), "rounds": 3}
"""The clients of the second round have no weight."""


@pytest.mark.parametrize("algorithm", [fv.FedAvg(), fv.FedProx(), fv.FedNova()])
def test_there_is_no_mean_over_a_cohort_without_weight(algorithm: fv.Algorithm) -> None:
    with pytest.raises(UsageError, match=NOBODY) as caught:
        run(algorithm, **LIGHT)
    assert torch.equal(caught.value.history.x0, run(algorithm, **{**LIGHT, "rounds": 1}).x0)


@pytest.mark.parametrize(
    "algorithm", [fv.FedAvg("unbiased"), fv.FedVRA(), fv.FedVRA(gamma=0.1, a=2), fv.FedDyn(), fv.Scaffold()]
)
def test_those_that_take_no_mean_go_on(algorithm: fv.Algorithm) -> None:
    assert run(algorithm, **LIGHT).x0.isfinite().all()


@pytest.mark.parametrize("algorithm", [fv.FedAvg("unbiased"), fv.FedVRA(gamma=0.1, a=2), fv.Scaffold()])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_nor_is_there_a_mean_of_buffers(algorithm: fv.Algorithm, buffers: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    given = {**LIGHT, "problem": fv.Supervised(net, buffers=buffers), "data": data()}
    with pytest.raises(UsageError, match=NOBODY) as caught:
        run(algorithm, **given)
    before = run(algorithm, **{**given, "rounds": 1})
    for name in ("x0", "lam", "aux"):
        assert torch.equal(getattr(caught.value.history, name), getattr(before, name))
    assert caught.value.history.duals == before.duals


# -- one place for a thing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"batch_size": 10}, {}),
        ({"batch_size": 10}, {"batch_size": 5}),
        ({"drop_last": True}, {"batch_size": 10}),
        ({"seed": 3}, {"seed": 4}),
    ],
)
def test_batches_and_seed_are_said_to_the_run(settings: dict[str, Any], options: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(
        UsageError, match=rf"SolverSettings\({name}={value}\) is not what the run has.*say {name}={value}"
    ):
        run(problem=fv.Supervised(nn.Linear(4, 3)), data=data(), solver=fv.SolverSettings(**settings), **options)


def test_the_same_word_twice_is_no_conflict() -> None:
    given = {"problem": fv.Supervised(nn.Linear(4, 3)), "data": data(), "batch_size": 5, "drop_last": True, "seed": 2}
    twice = fv.SolverSettings(batch_size=5, drop_last=True, seed=2, path="eager")
    assert torch.equal(run(**given, solver=twice).x0, run(**given, solver=fv.SolverSettings(path="eager")).x0)


# -- what there was by then -------------------------------------------------------------------------------------------------


class OwnError(Exception):
    """Somebody's own."""


class Stopping(fv.Observer):
    """Ends the run in its third round, before or after it is played."""

    def __init__(self, when: str) -> None:
        self.when = when

    def before(self, federation: Any) -> None:
        if self.when == "before" and federation.state.round == 2:
            raise OwnError

    def after(self, federation: Any, seen: None) -> dict[str, Any]:
        if self.when == "after" and federation.state.round == 3:
            raise OwnError
        return {"seen": True}


def stop_in_third(record: dict[str, Any]) -> None:
    if record["round"] == 3:
        raise OwnError


@pytest.mark.parametrize(
    ("options", "played", "records"),
    [
        ({"progress": stop_in_third}, 3, 3),
        ({"observers": [Stopping("before")]}, 2, 2),
        ({"observers": [Stopping("after")]}, 3, 2),
    ],
)
def test_an_exception_of_the_users_own_brings_the_history_along(
    options: dict[str, Any], played: int, records: int
) -> None:
    with pytest.raises(OwnError) as caught:
        run(keep="x0", **options)
    found, shorter = caught.value.history, run(rounds=played, keep="x0")  # type: ignore[attr-defined]
    assert isinstance(found, fv.History)
    assert len(found.metrics) == len(found.trajectory) == records
    assert torch.equal(found.x0, shorter.x0)
    assert torch.equal(found.lam, shorter.lam)
    assert found.duals == shorter.duals
    assert any(f"after round {played}" in note and "history" in note for note in caught.value.__notes__)


def test_a_run_that_diverges_or_is_interrupted_brings_it_along_too() -> None:
    def interrupt(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        run(progress=interrupt)
    assert len(stopped.value.history.metrics) == 1  # type: ignore[attr-defined]
    with pytest.raises(DivergedError) as diverged:
        run(fv.FedAvg(), lr=1e60, rounds=9)
    assert len(diverged.value.history.metrics) == diverged.value.round - 1  # type: ignore[attr-defined]


def test_an_exception_before_the_first_round_has_nothing_to_bring() -> None:
    with pytest.raises(UsageError) as caught:
        run(fv.FedVRA(gamma=1e3, a=1))
    assert not hasattr(caught.value, "history")
