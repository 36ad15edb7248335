"""FedVRA-U with the constants of its tasks and with `auto`: rounds to the same targets, for docs/adaptive-study.md.

    python benchmarks/adaptive_u.py          runs what is missing
    python benchmarks/adaptive_u.py table    prints the table

Every run is kept in docs/results/adaptive-u.json as soon as it is made. Counted for the better of x0 and the mean of the
clients' models, for both alike.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from adaptive import Results, Run, play
from adaptive_lists import Trial
from adaptive_tables import Table, deployed, fall, goals, head, number, row
from torch import Tensor

import fedvra as fv
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.runs.config import build, configure

AUTO = {"gamma": "auto", "a": "auto", "d": "auto"}
TRIALS = (
    Trial("digits-ssl", 80, (80, 85, 90), (110, 111, 112), {"task": "digits-ssl"}),
    Trial("digits-clustering", 60, (60, 70), (110, 111, 112), {"task": "digits-clustering"}),
    Trial("blobs-clustering", 30, (90, 99), (110, 111, 112), {"task": "blobs-clustering"}),
    Trial("mnist-ssl", 80, (90, 94, 95), (110,), {"task": "mnist-ssl"}),
    Trial("two blocks, quadratic", 250, (2, 4), (110, 111, 112)),
)
"""Targets are accuracies in per cent; for the quadratic orders of magnitude by which the solution has come nearer."""


class TwoQuadratics(fv.TwoBlock):
    """f_i(x, y) = (x + y - c_i)' A_i (x + y - c_i) / 2 + ridge |y|^2 / 2, whose solution is known in x.

    With y at its best f_i is a quadratic in x with Hessian H_i = ridge A_i (A_i + ridge)^-1 and the minimiser c_i.
    """

    ridge, lr_y, steps_y = 0.5, 0.15, 20

    def __init__(self, seed: int, clients: int = 50, size: int = 8) -> None:
        rng = np.random.default_rng(seed)
        bases = np.linalg.qr(rng.normal(size=(clients, size, size)))[0]
        A = bases * rng.uniform(0.1, 5.0, size=(clients, 1, size)) @ bases.transpose(0, 2, 1)
        self.A, self.c = torch.from_numpy(A), torch.from_numpy(rng.normal(size=(clients, size)))
        H = self.ridge * A @ np.linalg.inv(A + self.ridge * np.eye(size))
        self.best = torch.from_numpy(np.linalg.solve(H.sum(0), np.einsum("nij,nj->i", H, self.c.numpy())))
        self.start = self.best + torch.from_numpy(3 * rng.normal(size=size))

    @property
    def clients(self) -> int:
        return len(self.A)

    def x_start(self) -> Tensor:
        return self.start

    def y_start(self, client: int) -> Tensor:
        return torch.zeros_like(self.best)

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        off = x + y - self.c[client]
        return float(off @ self.A[client] @ off + self.ridge * y @ y) / 2

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: np.random.Generator | None) -> Tensor:
        return self.A[client] @ (x + y - self.c[client])

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: np.random.Generator | None) -> Tensor:
        return self.gradient_x(client, x, y, rng) + self.ridge * y

    def project_x(self, x: Tensor) -> Tensor:
        return x

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return y


def of_task(trial: Trial, seed: int, settings: dict[str, Any]) -> Run:
    """From the records: a clustering is judged over all clients' points, by the server's model alone."""
    options = {**trial.options, "seed": seed, "algorithm": "fedvra-u", "set": settings, "deploy": "mean"}
    federation = Federation(build(configure(options)), workers=1)
    run: Run = {"mean": [], "x0": []}
    try:
        while federation.state.round < trial.rounds and max([0.0, *run["mean"], *run["x0"]]) < goals(trial)[-1]:
            record = federation.round()
            run["x0"].append(round(record["test_accuracy"], 4))
            run["mean"].append(round(record.get("model_accuracy", record["test_accuracy"]), 4))
    except fv.DivergedError:
        run["diverged"] = federation.state.round
    finally:
        federation.close()
    return run


def of_quadratic(trial: Trial, seed: int, algorithm: fv.FedVRAU) -> Run:
    problem = TwoQuadratics(seed)

    def gap(federation: Federation) -> float:
        share = (federation.state.x0 - problem.best).norm() / (problem.start - problem.best).norm()
        return float(np.clip(-np.log10(float(share)), -6, 99))

    experiment = Experiment(algorithm, problem, fv.Uniform(10), fv.Steps(10), lr=0.05, seed=seed, eval_every=0)
    return play(experiment, trial, gap, trial.targets[-1], only_mean=False)


def make() -> None:
    results = Results("u")
    for trial in TRIALS:
        for seed in trial.seeds:
            for name, settings in (("constants", {}), ("auto", AUTO)):
                given: dict[str, Any] = {key: fv.Auto() for key in settings}
                results.have(
                    f"{trial.name} | {name} | {seed}",
                    lambda t=trial, s=seed, g=settings, o=given: (
                        of_quadratic(t, s, fv.FedVRAU(**o)) if t.quadratic else of_task(t, s, g)
                    ),
                )


def table() -> Table:
    runs = Results("u").runs
    yield from head("task", "seed", "targets", "its constants", "auto", "worst fall, points: its constants", "auto")
    for trial in TRIALS:
        for seed in trial.seeds:
            both = [runs.get(f"{trial.name} | {name} | {seed}") for name in ("constants", "auto")]
            if None in both:
                continue
            rounds = [", ".join(number(deployed(run, goal)) for goal in goals(trial)) for run in both if run]
            falls = ["" if trial.quadratic else f"{fall(run):.1f}" for run in both if run]
            targets = ", ".join(f"{target:g}" for target in trial.targets) + (" orders" if trial.quadratic else "%")
            yield row(trial.name, str(seed), targets, *rounds, *falls)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["table"]:
        print("\n".join(table()))
    else:
        make()
