"""Is a run covered by Theorem 1 (or 2, where there is a second block)? Measures what the theorem takes for given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from fedvra.algorithms.base import Algorithm
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import unknown_name
from fedvra.core.streams import Purpose, stream
from fedvra.core.threads import one_thread
from fedvra.core.validation import check_whole
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.problems.base import oracle_of
from fedvra.problems.oracle import Oracle, Point
from fedvra.samplers.base import random_subset
from fedvra.theory.assumptions import Doubts, settings_of_run
from fedvra.theory.conditions import Condition
from fedvra.theory.coverage import Coverage, Settings, Start
from fedvra.theory.estimates import Estimates, estimate
from fedvra.theory.seeing import Spread, points_of
from fedvra.theory.theorem1 import Theorem1
from fedvra.theory.theorem2 import Theorem2

CLIENTS = 20
"""Looked at, where there are more."""
SAMPLES = 200
"""Of a client, for its curvature, where it has more."""


def check(
    algorithm: Algorithm, *, rounds: int, clients: int = CLIENTS, samples: int | None = SAMPLES, **run: Any
) -> Coverage:
    """Whether the run that :func:`fedvra.simulate` would make of these arguments is covered by the paper's theorems.

    Args:
        run: problem, sampler, work, data, lr and what else decides the numbers of a run.
        clients: look at so many at most.
        samples: of each, for its curvature; None takes all.

    >>> import fedvra as fv
    >>> problem = fv.Quadratic(torch.eye(2).expand(3, 2, 2), torch.arange(6.0).view(3, 2))
    >>> run = {"problem": problem, "sampler": fv.Uniform(2), "work": fv.Steps(2), "rounds": 10}
    >>> found = check(fv.FedVRA(gamma=1.0, a=3, d=1.5), lr=0.1, **run)
    >>> found
    <Theorem 1 does not cover FedVRA: gamma, as printed; gamma, as proved>
    >>> better = found.proposal
    >>> check(fv.FedVRA(gamma=float(better.gamma[0]), a=3, d=1.5), lr=float(better.eta[0]), **run)
    <Theorem 1 covers FedVRA>
    """
    known = [field.name for field in fields(Experiment)]
    for name in run:
        if name not in known:
            raise unknown_name("argument of check", name, known)
    start = run.get("x_init")
    experiment = Experiment(algorithm, **{**run, "x_init": None if start is None else torch.as_tensor(start)})
    return examine(experiment, rounds, clients, samples)


def examine(
    experiment: Experiment,
    rounds: int,
    clients: int = CLIENTS,
    samples: int | None = SAMPLES,
    restore: Callable[[Federation], int] | None = None,
) -> Coverage:
    """The same of an experiment; ``restore`` as in :func:`cover`."""
    check_whole("rounds", rounds, least=0)
    check_whole("clients", clients)
    plain = replace(experiment, solver=replace(experiment.solver, path="eager"))
    with one_thread(), closing(Federation(plain, workers=1)) as federation:
        return cover(federation, rounds, clients, samples, restore)


def cover(
    federation: Federation,
    rounds: int,
    clients: int = CLIENTS,
    samples: int | None = SAMPLES,
    restore: Callable[[Federation], int] | None = None,
) -> Coverage:
    """Look at a federation before its first round.

    Args:
        restore: brings it to a later state and says of which round; curvature and noise are then looked at there too.
    """
    experiment, doubts = federation.experiment, Doubts()
    total, rounds = federation.total, max(rounds, 1)
    chosen = np.arange(total)
    if total > clients:
        chosen = random_subset(stream(experiment.seed, Purpose.PROBE, round=2), total, clients)
        doubts.notes.append(f"{clients} of the {total} clients were looked at; the others may differ.")
    oracle = oracle_of(experiment.problem, experiment.data)
    settings = settings_of_run(federation, chosen, rounds, doubts)
    omega = federation.omega[chosen] / federation.omega[chosen].sum()
    places = [points_of(federation, chosen)]
    start = _start(oracle, places[0], chosen, omega, federation.omega, doubts)
    played = 0 if restore is None else restore(federation)
    if played:
        places.append(points_of(federation, chosen))
        doubts.notes.append(f"curvature and noise were looked at before the first round and after round {played}.")
    found = estimate(oracle, places, chosen, experiment.batch_size, samples, experiment.seed)
    _about(found, samples, doubts)
    theorem = 2 if federation.clients.y is not None else 1
    setting: Theorem1 | Theorem2 | None = None
    proposal: Theorem1 | Theorem2 | None = None
    conditions: tuple[Condition, ...] = ()
    L = np.maximum(found.L, 1e-30)  # of an affine cost function: any constant will do
    if np.all(settings.steps > 0) and np.all((settings.p > 0) & (settings.p <= 1)):
        if theorem == 1:
            setting, conditions, proposal = _theorem1(L, settings, omega, total)
        else:
            settings = _with_y(settings, oracle, chosen, places[0])
            setting, conditions, proposal = _theorem2(L, settings, omega, bool(found.noise.any()), doubts)
    return Coverage(
        label=experiment.algorithm.label,
        theorem=theorem,
        rounds=rounds,
        total=total,
        clients=chosen,
        estimates=found,
        settings=settings,
        start=start,
        reasons=(*doubts.beyond, *doubts.reasons),
        notes=tuple(doubts.notes),
        conditions=conditions,
        setting=setting,
        proposal=None if doubts.beyond else proposal,
    )


# -- what is measured -------------------------------------------------------------------------------------------------------


def _start(
    oracle: Oracle, points: list[Point], clients: Ints, omega: Floats, everyone: Floats, doubts: Doubts
) -> Start:
    cost, xi, spread = 0.0, np.zeros(len(clients)), Spread()
    for k, (client, point) in enumerate(zip(clients.tolist(), points, strict=True)):
        value, gradient = oracle.look(client, point)
        gradient = gradient.double()
        cost += float(omega[k]) * value
        xi[k] = float(gradient.square().sum())
        spread.add(gradient, float(omega[k]))
    lower = oracle.lower_bound(everyone)
    if lower is None:
        doubts.notes.append("no lower bound of f is known: 0 is assumed.")
    elif not np.isfinite(lower):
        doubts.beyond.append("f is not bounded below.")
    return Start(cost, spread.norm2, xi, 0.0 if lower is None else lower)


def _about(found: Estimates, samples: int | None, doubts: Doubts) -> None:
    if found.exact:
        doubts.notes.append("L_i is exact.")
        return
    measured = "L_i is the largest curvature at the points looked at"
    true = "the true constant, which must hold everywhere (and does not exist for networks with ReLU or max-pooling)"
    if found.whole:
        doubts.notes.append(
            f"{measured}: a lower bound of {true}. A condition that fails here fails; one that holds may fail with the "
            "true constant."
        )
    else:
        doubts.notes.append(
            f"{measured}, of {samples} samples for all that a client has: an estimate of a lower bound of {true}. With "
            "--samples full (samples=None) a condition that fails does fail; one that holds may fail with the true constant."
        )
    if found.noise.any():
        doubts.notes.append("the gradients' variance is an estimate at the same points, without augmentation.")
        doubts.notes.append(
            "minibatches are treated as independent draws; those of an epoch are cuts of one permutation: an approximation."
        )


# -- the theorems ------------------------------------------------------------------------------------------------------------


def _suggested(s: Settings, least: float) -> tuple[Floats, Floats]:
    """The run's own a and d where a + d is large enough; else d = 1/p, as Remark 1 says, and a nine times as large."""
    if s.a is not None and s.d is not None and np.all(s.d > 0) and np.all(s.a + s.d >= least):
        return s.a, s.d
    return 9 / s.p, 1 / s.p


def _theorem1(
    L: Floats, s: Settings, omega: Floats, total: int
) -> tuple[Theorem1 | None, tuple[Condition, ...], Theorem1]:
    proposal = Theorem1.feasible(L, s.p, s.steps, *_suggested(s, 0.5), omega, total, common=True)
    if s.gamma is None or s.d is None or not np.all(s.d > 0):
        return None, (), proposal
    setting = Theorem1(L, s.p, s.gamma, s.eta, s.a, s.d, s.steps, omega, total)
    return setting, tuple(setting.conditions()), proposal


def _with_y(s: Settings, oracle: Oracle, clients: Ints, points: list[Point]) -> Settings:
    found = [oracle.block_y(client, point) for client, point in zip(clients.tolist(), points, strict=True)]
    lr_y, steps_y = np.array([block or (1.0, 1) for block in found]).T
    return s._replace(lr_y=lr_y, steps_y=steps_y)


def _theorem2(
    L: Floats, s: Settings, omega: Floats, noise: bool, doubts: Doubts
) -> tuple[Theorem2 | None, tuple[Condition, ...], Theorem2 | None]:
    """The conditions for the first round, which must be like the others."""
    differ = "{} over the rounds: Theorem 2 is taken here for those that do not."
    if np.ptp(s.p, axis=0).any() or np.ptp(s.steps, axis=0).any():
        doubts.beyond.append(differ.format("p or Q change"))
    if any(table is not None and np.ptp(table, axis=0).any() for table in (s.a, s.d)):
        doubts.reasons.append(differ.format("a or d change"))
    if noise:
        doubts.notes.append("what Theorem 2 promises is shown for exact gradients; those of this run are noisy.")
    p, steps = s.p[0], s.steps[0]
    a, d = (table[0] for table in _suggested(s, 1.1))
    proposal = None
    if np.all(p < 1):
        proposal = Theorem2.feasible(L, p, steps, s.steps_y, a, d, omega, common=True, lr_y=s.lr_y)
    if s.gamma is None or s.a is None or s.d is None or not np.all(s.d > 0):
        return None, (), proposal
    setting = Theorem2(L, p, s.gamma, s.eta, s.a[0], s.d[0], steps, s.lr_y, s.steps_y, omega)
    return setting, tuple(setting.conditions()), proposal
