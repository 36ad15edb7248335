"""The study behind docs/adaptive-study.md: FedVRA with nothing set (`auto`) against tuned stepsizes and other algorithms.

    python benchmarks/adaptive.py design         the tasks the rule was designed on; rivals with one seed of each
    python benchmarks/adaptive.py ablation       these tasks again without one part of the rule at a time, all but MNIST
    python benchmarks/adaptive.py held-out       the tasks that judge it, beside its rivals
    python benchmarks/adaptive.py held-out 900   with one of the seeds only

Both lists are in adaptive_lists.py. Every run is kept in docs/results/adaptive-PART.json as soon as it is made; called again, a
part goes on from there. The figures and tables of the page: benchmarks/adaptive_tables.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from adaptive_lists import DESIGN, HELD_OUT, RIVALS, WITHOUT, Trial
from adaptive_rivals import OWN, Rival

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.core.coefficients import Totals
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.policies import pace, pace_rules, parse_setting
from fedvra.runs.config import build, configure

RESULTS = Path(__file__).parent.parent / "docs" / "results"
Measure = Callable[[Federation], float]
Run = dict[str, Any]
"""``mean`` and, where it is another model, ``x0``: their measures round by round; ``sigma``; ``diverged``, the round."""


class Results:
    """Runs by name, in a JSON file that is written after every one."""

    def __init__(self, part: str) -> None:
        self.path = RESULTS / f"adaptive-{part}.json"
        self.runs: dict[str, Run] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def have(self, name: str, make: Callable[[], Run]) -> Run:
        if name not in self.runs:
            self.runs[name] = make()
            lines = [f"{json.dumps(key)}: {json.dumps(run)}" for key, run in self.runs.items()]
            self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(
                name,
                *(f"{key} {len(c)}: {c[-1]}" for key in ("mean", "x0") if (c := self.runs[name].get(key))),
                flush=True,
            )
        return self.runs[name]


def play(
    experiment: Experiment, trial: Trial, measure: Measure, goal: float, only_mean: bool, rival: Rival | None = None
) -> Run:
    """Up to the trial's rounds, fewer once a model has reached ``goal``. A ``rival`` takes the place of the algorithm."""
    federation = Federation(experiment if rival is None else replace(experiment, **rival.options()), workers=1)
    run: Run = {"mean": [], "x0": [], "sigma": []}
    try:
        while federation.state.round < trial.rounds and not any(
            run[key] and run[key][-1] >= goal for key in ("mean", "x0")
        ):
            before, (cohort, row) = federation.state.x0, _next(federation)
            record = federation.round()
            after = federation.state.x0
            share = row.scale(Totals(float(cohort.omega.sum()), float(cohort.omega @ cohort.steps)))
            weight = share * float(cohort.omega @ row.w)  # of those drawn, in the step: near 1 where weights are alike
            federation.state.x0 = before + (after - before + row.kappa * federation.state.lam) / weight
            run["mean"].append(round(measure(federation), 4))
            federation.state.x0 = after
            if rival is not None:
                federation.state.x0 = rival.after(federation, cohort, before)
            if not only_mean and (row.kappa or abs(weight - 1) > 1e-6 or rival is not None):
                run["x0"].append(round(measure(federation), 4))
            if "multiplier" in record:
                run["sigma"].append(round(record["multiplier"], 3))
    except fv.DivergedError:
        run["diverged"] = federation.state.round
    finally:
        federation.close()
    return {key: value for key, value in run.items() if value != []}


def _next(federation: Federation) -> tuple[Any, Any]:
    cohort = federation.next_cohort()
    return cohort, federation.plan.row(cohort, federation.state.counts)


def accuracy(federation: Federation) -> float:
    found = federation.evaluator.test(None)["test_accuracy"]  # of x0, as `play` has set it
    assert found is not None
    return found


def of_task(trial: Trial, seed: int, name: str, settings: dict[str, Any]) -> Run:
    rival = OWN[name]() if name in OWN else None
    algorithm = {"algorithm": name, "set": settings} if rival is None else {"algorithm": "fedavg"}
    experiment = build(configure({**trial.options, "seed": seed, "eval_every": 0, **algorithm}))
    only_mean = name == "fedvra" and not settings
    return play(experiment, trial, accuracy, trial.targets[-1] / 100, only_mean, rival)


def quadratic(trial: Trial, seed: int, algorithm: fv.Algorithm, rival: Rival | None = None) -> Run:
    """100 clients with curvatures from low to high in bases that differ, ten per round; minus the log10 of the gap to f*."""
    rng = np.random.default_rng(seed)
    N, P, given = 100, 20, trial.options
    common, _ = np.linalg.qr(rng.standard_normal((P, P)))
    A = np.empty((N, P, P))
    for i in range(N):
        basis, _ = np.linalg.qr(common + 0.1 * rng.standard_normal((P, P)))
        A[i] = basis @ np.diag(np.geomspace(given["low"], given["high"], P) * rng.uniform(0.5, 1.5, P)) @ basis.T
    A = (A + A.transpose(0, 2, 1)) / 2
    b = np.einsum("nij,nj->ni", A, rng.standard_normal((N, P)))
    mean = A.mean(0)
    best = np.linalg.solve(mean, b.mean(0))
    start = best + 3 * rng.standard_normal(P)

    def gap(federation: Federation) -> float:
        off = federation.state.x0.numpy() - best
        share = float(off @ mean @ off) / float((start - best) @ mean @ (start - best))
        return float(np.clip(-np.log10(share), -6, 99))

    costs, work = fv.Quadratic(A, b), fv.Steps(given["steps"])
    experiment = Experiment(
        algorithm,
        costs,
        fv.Uniform(10),
        work,
        lr=given["lr"],
        seed=seed,
        eval_every=0,
        x_init=torch.tensor(start),
    )
    return play(experiment, trial, gap, trial.targets[-1], only_mean=rival is None, rival=rival)


def run_of(trial: Trial, seed: int, algorithm: str, settings: dict[str, Any]) -> Run:
    if not trial.quadratic:
        return of_task(trial, seed, algorithm, settings)
    if algorithm in OWN:
        return quadratic(trial, seed, fv.FedAvg(), OWN[algorithm]())
    said = {name: parse_setting(value) if isinstance(value, str) else value for name, value in settings.items()}
    return quadratic(trial, seed, REGISTRY.get(algorithm)(**said))


def design() -> None:
    results = Results("design")
    for trial in DESIGN:
        for seed in trial.seeds:
            rivals = RIVALS if seed == trial.seeds[0] else {}
            for name, (algorithm, settings) in {"auto": ("fedvra", {}), **rivals}.items():
                results.have(
                    f"{trial.name} | {name} | {seed}",
                    lambda t=trial, s=seed, a=algorithm, g=settings: run_of(t, s, a, g),
                )


def ablation() -> None:
    results = Results("ablation")
    for name, (constants, reason) in WITHOUT.items():
        settings = {"gamma": f"auto:{constants}"} if constants else {}
        kept = tuple(rule for rule in pace_rules.RULES if rule.reason != reason)
        with patch.object(pace, "RULES", kept), patch.object(pace, "REASONS", ("start", *(r.reason for r in kept))):
            for trial in DESIGN:
                for seed in trial.seeds[: 1 if trial.quadratic else 2] if trial.options.get("task") != "mnist" else ():
                    results.have(
                        f"{trial.name} | {name} | {seed}", lambda t=trial, s=seed, g=settings: run_of(t, s, "fedvra", g)
                    )


def held_out(seeds: tuple[int, ...]) -> None:
    """One seed of every task before the next seed, so that what there is time for is spread over the tasks."""
    results = Results("held-out")
    for seed in seeds:
        for trial in (replace(t, seeds=()) for t in HELD_OUT if seed in t.seeds):
            for name, (algorithm, settings) in {"auto": ("fedvra", {}), **RIVALS}.items():
                results.have(
                    f"{trial.name} | {name} | {seed}",
                    lambda t=trial, s=seed, a=algorithm, g=settings: of_task(t, s, a, g),
                )


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    part, *chosen = sys.argv[1:]
    if part == "design":
        design()
    elif part == "ablation":
        ablation()
    else:
        held_out(tuple(map(int, chosen)) or tuple(dict.fromkeys(s for t in HELD_OUT for s in t.seeds)))
