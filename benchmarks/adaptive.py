"""The study behind docs/adaptive.md: FedVRA with nothing set (`auto`) against tuned stepsizes and against FedAvg.

    python benchmarks/adaptive.py mnist          rounds to 90/95/97% on MNIST, three seeds, auto and the paper's setting
    python benchmarks/adaptive.py corners        MNIST at the corners of the grid below, where divergence is likeliest
    python benchmarks/adaptive.py grids          digits, logistic regression, quadratics: auto against 7 x 7 settings of (a, d)
    python benchmarks/adaptive.py robust         digits, 192 federations: does auto diverge where FedAvg does not?

Every run is kept in docs/results/adaptive-PART.json as soon as it is made; called again, a part goes on from there. Runs on
CIFAR-10 are those of `fedvra reproduce table2`. The figures and tables of docs/adaptive.md: benchmarks/adaptive_tables.py.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedvra as fv
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.policies import Pace
from fedvra.runs.config import build, configure

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PAPER = {"gamma": 0.1, "a": 10, "d": 10}
TARGETS = (90, 95, 97)
STRENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
"""a*p of the grids."""
AGGREGATIONS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""d*p of the grids."""
Curve = list[float]


class Results:
    """Runs by name, in a JSON file that is written after every one."""

    def __init__(self, part: str) -> None:
        self.path = RESULTS / f"adaptive-{part}.json"
        self.runs: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def have(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.runs:
            self.runs[name] = make()
            text = json.dumps(self.runs, indent=0).replace(",\n", ", ").replace("[\n", "[").replace("\n]", "]")
            self.path.write_text(text.replace('}, "', '},\n"') + "\n")
            print(name, _short(self.runs[name]), flush=True)
        return self.runs[name]


def play(
    experiment: Experiment, rounds: int, measure: Callable[[Federation, dict[str, Any]], float], goal: float
) -> dict[str, Any]:
    """Up to ``rounds`` rounds, fewer once ``measure`` (higher is better) has reached ``goal``; a diverged run ends with NaN."""
    federation = Federation(experiment, workers=1)
    curve: Curve = []
    sigmas: Curve = []
    try:
        while len(curve) < rounds and not (curve and curve[-1] >= goal):
            record = federation.round()
            curve.append(round(measure(federation, record), 4))
            if federation.state.memory.numbers:
                sigmas.append(round(Pace(**federation.state.memory.numbers).sigma, 3))
    except fv.DivergedError:
        curve.append(float("nan"))
    finally:
        federation.close()
    return {"curve": curve, "sigma": sigmas} if sigmas else {"curve": curve}


def of_task(options: dict[str, Any], rounds: int, goal: float = 1.0) -> dict[str, Any]:
    return play(build(configure(options)), rounds, lambda _, record: record["test_accuracy"], goal)


def first(run: dict[str, Any], target: float) -> int | None:
    """The first round at or above the target."""
    return next((r + 1 for r, value in enumerate(run["curve"]) if value >= target), None)


# -- MNIST ----------------------------------------------------------------------------------------------------------------

DESIGN, FRESH = range(3), range(22, 25)
"""Seeds: auto was designed with the former (and 3 to 8 and 10 to 21), and not run on the latter before it was settled."""
SETTINGS = {"non-IID": {}, "HLU": {"epochs": "1-5"}, "IID": {"split": "iid"}}


def mnist() -> None:
    results = Results("mnist")
    for seeds, (label, given), (name, options) in itertools.product(
        (DESIGN, FRESH), (("auto", {}), ("paper", PAPER)), SETTINGS.items()
    ):
        for seed in seeds:
            task = {"task": "mnist", "seed": seed, "set": given, **options}
            results.have(f"{name}, {label}, seed {seed}", lambda task=task: of_task(task, 130, 0.97))


def corners() -> None:
    results = Results("corners")
    for cohort, epochs, split, lr in (
        (2, "5", "dirichlet:0.05", 0.03),
        (2, "1", "dirichlet:0.05", 0.01),
        (100, "5", "dirichlet:0.05", 0.03),
        (10, "5", "dirichlet:0.05", 0.03),
        (10, "1-5", "iid", 0.03),
    ):
        options = {"task": "mnist", "cohort": cohort, "epochs": epochs, "split": split, "lr": lr}
        rounds = 20 if cohort == 100 else 60
        for algorithm in ("fedvra", "fedavg"):
            name = f"m={cohort} epochs={epochs} {split} lr={lr} {algorithm}"
            task = {**options, "algorithm": algorithm}
            results.have(name, lambda task=task, rounds=rounds: of_task(task, rounds))


# -- against grids ----------------------------------------------------------------------------------------------------------


QUADRATICS = {"mild": (0.5, 5, 10, 0.02), "ill-conditioned": (0.01, 10, 50, 0.02), "stiff": (0.1, 50, 10, 0.01)}
"""Curvatures from and to, local steps and their stepsize."""


def quadratic(low: float, high: float, steps: int, lr: float, seed: int, algorithm: fv.Algorithm) -> dict[str, Any]:
    """100 clients with curvatures from low to high in bases that differ, ten per round; minus the log10 of the gap to f*."""
    rng = np.random.default_rng(seed)
    N, P = 100, 20
    common, _ = np.linalg.qr(rng.standard_normal((P, P)))
    A = np.empty((N, P, P))
    for i in range(N):
        basis, _ = np.linalg.qr(common + 0.1 * rng.standard_normal((P, P)))
        A[i] = basis @ np.diag(np.geomspace(low, high, P) * rng.uniform(0.5, 1.5, P)) @ basis.T
    A = (A + A.transpose(0, 2, 1)) / 2
    b = np.einsum("nij,nj->ni", A, rng.standard_normal((N, P)))
    mean = A.mean(0)
    best = np.linalg.solve(mean, b.mean(0))
    start = best + 3 * rng.standard_normal(P)

    def gap(x: Any) -> float:
        return float((x - best) @ mean @ (x - best)) / float((start - best) @ mean @ (start - best))

    experiment = Experiment(
        algorithm,
        fv.Quadratic(A, b),
        fv.Uniform(10),
        fv.Steps(steps),
        lr=lr,
        seed=seed,
        eval_every=0,
        x_init=torch.tensor(start),
    )
    return play(experiment, 250, lambda f, _: float(np.clip(-np.log10(gap(f.state.x0.numpy())), -6, 99)), 4.0)


def digits(model: str, rounds: int, goal: float, seed: int, algorithm: fv.Algorithm) -> dict[str, Any]:
    given = {"gamma": algorithm.gamma, "a": algorithm.a, "d": algorithm.d}  # type: ignore[attr-defined]
    return of_task({"task": "digits", "model": model, "seed": seed, "set": given}, rounds, goal)


def grids() -> None:
    """The whole grid with seed 0; auto and the grid's three best with two more seeds."""
    results = Results("grids")
    cases: dict[str, tuple[float, float, Callable[[int, fv.Algorithm], dict[str, Any]]]] = {
        "digits, mlp": (0.2, 0.95, lambda s, alg: digits("mlp", 60, 0.95, s, alg)),
        "digits, logistic regression": (0.2, 0.92, lambda s, alg: digits("linear", 80, 0.92, s, alg)),
    }
    for kind, given in QUADRATICS.items():
        cases[f"quadratics, {kind}"] = (0.1, 4.0, lambda s, alg, given=given: quadratic(*given, s, alg))
    for name, (p, goal, run) in cases.items():
        for seed in range(3):
            results.have(f"{name} | auto | seed {seed}", lambda run=run, seed=seed: run(seed, fv.FedVRA()))
        found = {}
        for strength, aggregation in itertools.product(STRENGTHS, AGGREGATIONS):
            algorithm = fv.FedVRA(gamma=0.1, a=strength / p, d=aggregation / p)
            made = results.have(
                f"{name} | {strength:g} {aggregation:g} | seed 0", lambda run=run, a=algorithm: run(0, a)
            )
            found[strength, aggregation] = first(made, goal) or 10**6
        for strength, aggregation in sorted(found, key=lambda key: found[key])[:3]:  # stable: ties go to the smaller
            algorithm = fv.FedVRA(gamma=0.1, a=strength / p, d=aggregation / p)
            for seed in (1, 2):
                results.have(
                    f"{name} | {strength:g} {aggregation:g} | seed {seed}",
                    lambda run=run, a=algorithm, seed=seed: run(seed, a),
                )


# -- robustness ---------------------------------------------------------------------------------------------------------------

COHORTS, EPOCHS = {2: 60, 10: 40, 50: 16, 100: 12}, ("5", "1", "1-5", "2")
SPLITS, RATES = ("dirichlet:0.05", "dirichlet:0.2", "dirichlet:1", "iid"), (0.03, 0.01, 0.003)
"""The hardest first."""


def robust() -> None:
    results = Results("robust")
    for lr, split, epochs, (cohort, rounds) in itertools.product(RATES, SPLITS, EPOCHS, COHORTS.items()):
        options = {"task": "digits", "clients": 100, "batch_size": 7, "cohort": cohort, "eval_every": rounds // 4}
        options |= {"epochs": epochs, "split": split, "lr": lr}
        for algorithm in ("fedvra", "fedavg"):
            task = {**options, "algorithm": algorithm}

            def run(task: dict[str, Any] = task, rounds: int = rounds) -> dict[str, Any]:
                def loss(_: Federation, record: dict[str, Any]) -> float:
                    return float("-inf") if record["test_loss"] is None else -record["test_loss"]

                made = play(build(configure(task)), rounds, loss, 99.0)
                return {"loss": [-v for v in made["curve"] if v != float("-inf")]}

            results.have(f"m={cohort} epochs={epochs} {split} lr={lr} {algorithm}", run)


def _short(run: dict[str, Any]) -> str:
    values = run.get("curve") or run.get("loss") or [float("nan")]
    return f"{len(values)} values, last {values[-1]:.3f}"


PARTS: dict[str, Callable[[], None]] = {
    "mnist": mnist,
    "corners": corners,
    "grids": grids,
    "robust": robust,
}


def main(parts: Iterable[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:])
