"""The study behind docs/deploy.md: x0, the mean of the clients' models or a running mean of x0, for each algorithm alike.

    python benchmarks/deploy.py             runs what is missing
    python benchmarks/deploy.py table       prints the tables of docs/deploy.md

x0 goes on as it would whichever model is deployed, so that one run measures them all. Every run is kept in
docs/results/deploy.json as soon as it is made; called again, the study goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedvra as fv
from fedvra.core.deploy import MEAN, Deployed
from fedvra.core.step import averaged
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.runs.config import build, configure
from fedvra.runs.history import rounds_to, rounds_to_stay, worst_fall

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "deploy.json"
FACTORS = (0.5, 0.7, 0.8, 0.9, 0.95)
FEWER = (0.5, 0.7, 0.9)
"""On MNIST, where looking at a model costs as much as a third of a round."""
ROWS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},
    "FedDyn": {"algorithm": "feddyn"},
    "SCAFFOLD": {"algorithm": "scaffold"},
    "FedVRA (auto)": {"algorithm": "fedvra"},
    "FedVRA (0.1, 10, 10)": {"algorithm": "fedvra", "set": {"gamma": 0.1, "a": 10, "d": 10}},
}
TASKS: dict[str, tuple[dict[str, Any], Sequence[int]]] = {
    "digits": ({"task": "digits", "rounds": 60}, range(50, 53)),
    "MNIST": ({"task": "mnist", "rounds": 100}, range(50, 51)),
    "digits, HLU": ({"task": "digits", "rounds": 60, "epochs": "1-5"}, range(50, 52)),
    "MNIST, HLU": ({"task": "mnist", "rounds": 100, "epochs": "1-5"}, range(50, 51)),
}
"""Tasks with their seeds, which no other study used."""
QUADRATICS, GAPS = range(50, 54), (1e-1, 1e-2, 1e-3)


def curves(
    experiment: Experiment, rounds: int, factors: Sequence[float] = FACTORS, gap: Any = None
) -> dict[str, list[float]]:
    """What each model came to after each round: accuracy on the test data, or what ``gap`` says of it."""
    federation = Federation(experiment, workers=1)
    found: dict[str, list[float]] = {name: [] for name in ("x0", "mean", *(f"ema:{each:g}" for each in factors))}
    running: dict[float, Deployed] = {}

    def measure(model: Deployed | None) -> float:
        if gap is not None:
            return float(f"{gap(federation.state.x0 if model is None else model.x):.4g}")
        return round(float(federation.evaluator.test(model)["test_accuracy"] or 0.0), 4)

    try:
        for _ in range(rounds):
            federation.round()
            state = federation.state
            found["x0"].append(measure(None))
            found["mean"].append(measure(state.deployed))
            for factor in factors:
                running[factor] = averaged(running.get(factor), state.x0, state.aux, factor, lambda x: x)
                found[f"ema:{factor:g}"].append(measure(running[factor]))
    finally:
        federation.close()
    return found


def quadratic(options: dict[str, Any], seed: int) -> dict[str, list[float]]:
    """40 quadratics that disagree, 8 at a time, 10 steps each: (f - min f) / (f(0) - min f) after each round."""
    rng = np.random.default_rng(seed)
    clients, size = 40, 20
    bases = np.linalg.qr(rng.normal(size=(clients, size, size)))[0]
    a = bases * rng.uniform(0.05, 1.0, size=(clients, 1, size)) @ bases.transpose(0, 2, 1)
    b = 3 * rng.normal(size=(clients, size))
    hessian, linear = torch.from_numpy(a.mean(0)), torch.from_numpy(b.mean(0))
    best = torch.linalg.solve(hessian, linear)

    def gap(x: torch.Tensor) -> float:
        away = x - best
        return float(away @ hessian @ away) / float(best @ hessian @ best)

    algorithm = build(configure({"task": "digits", **options})).algorithm
    problem = fv.Quadratic(torch.from_numpy(a), torch.from_numpy(b))
    experiment = Experiment(algorithm, problem, fv.Uniform(8), fv.Steps(10), lr=0.1, seed=seed, deploy=MEAN)
    return curves(experiment, 100, gap=gap)


def every_run() -> Iterator[tuple[str, Any]]:
    """Names of runs and functions that make them, seed by seed."""
    for row, options in ROWS.items():
        for seed in QUADRATICS:
            yield f"quadratics|{row}|{seed}", lambda o=options, s=seed: quadratic(o, s)
    for k, task, row in itertools.product(range(3), TASKS, ROWS):
        given, seeds = TASKS[task]
        if k < len(seeds):
            config = configure({**given, **ROWS[row], "seed": seeds[k], "eval_every": 0, "deploy": "mean"})
            factors = FEWER if task.startswith("MNIST") else FACTORS
            yield f"{task}|{row}|{seeds[k]}", lambda c=config, f=factors: curves(build(c), c.rounds, f)


def make(only: str = "") -> None:
    done = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, run in every_run():
        if name not in done and name.startswith(only):
            done[name] = run()
            lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in done.items())
            RESULTS.write_text("{\n" + lines + "\n}\n")
            print(name, {model: curve[-1] for model, curve in done[name].items()}, flush=True)


def table() -> None:
    """Means over the seeds; rounds as "first / from which on it is held", a run that did not get there counting as its end."""
    done = json.loads(RESULTS.read_text())
    print(
        "| task, seeds | algorithm | model | rounds to 90% | 95% | 97% | worst fall | last ten rounds |\n"
        + "| --- " * 8
        + "|"
    )
    for task, row in itertools.product(TASKS, ROWS):
        runs = [found for name, found in done.items() if name.startswith(f"{task}|{row}|")]
        for model in runs[0] if runs else ():
            records = [[{"round": k + 1, "test_accuracy": a} for k, a in enumerate(run[model])] for run in runs]
            cells = [
                f"{_mean(records, rounds_to, str(target))} / {_mean(records, rounds_to_stay, str(target))}"
                for target in (90, 95, 97)
            ]
            fall = statistics.fmean(100 * (worst_fall(each) or 0.0) for each in records)
            last = statistics.fmean(100 * a for run in runs for a in run[model][-10:])
            print(f"| {task}, {len(runs)} | {row} | {model} | {' | '.join(cells)} | {fall:.1f} | {last:.2f} |")
    print("\n| quadratics, algorithm | model | rounds to a gap of 0.1 | 0.01 | 0.001 |\n" + "| --- " * 5 + "|")
    for row in ROWS:
        runs = [found for name, found in done.items() if name.startswith(f"quadratics|{row}|")]
        for model in runs[0] if runs else ():
            firsts = [
                [next((k + 1 for k, g in enumerate(run[model]) if g <= gap), None) for run in runs] for gap in GAPS
            ]
            print(f"| {row} | {model} | {' | '.join(_text(each, len(runs[0][model])) for each in firsts)} |")


def _mean(records: Sequence[list[dict[str, Any]]], measure: Any, target: str) -> str:
    return _text([measure(each, [target])[target] for each in records], len(records[0]))


def _text(found: Sequence[int | None], end: int) -> str:
    mean = statistics.fmean(end if each is None else each for each in found)
    return f"{'>' if None in found else ''}{mean:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "table"], default="run")
    parser.add_argument("--only", default="", help="runs whose names begin so, e.g. 'digits|'")
    given = parser.parse_args()
    if given.what == "table":
        table()
    else:
        make(given.only)
