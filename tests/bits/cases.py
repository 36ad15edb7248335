"""Which runs are compared: every algorithm on every problem, then every option on a few of them.

Everything is made inside the run of its case, so that a name an older checkout does not have is the trouble of that case alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import fedvra as fv
from bits.problems import (
    CLASSES,
    CLIENTS,
    PROBLEMS,
    UNEQUAL,
    Options,
    convnet,
    mlp,
    pictures,
    points,
    semisupervised,
    supervised,
)  # fmt: skip

ROUNDS = 3
DTYPES = {"float32": torch.float32, "float64": torch.float64}

ALGORITHMS: dict[str, Callable[[], fv.Algorithm]] = {
    "fedavg": lambda: fv.FedAvg(),
    "fedavg unbiased": lambda: fv.FedAvg(averaging="unbiased"),
    "fedprox": lambda: fv.FedProx(),
    "fednova": lambda: fv.FedNova(),
    "scaffold": lambda: fv.Scaffold(),
    "scaffold global_lr=0.7": lambda: fv.Scaffold(global_lr=0.7),
    "vrlsgd": lambda: fv.VRLSGD(),
    "fedadmm": lambda: fv.FedADMM(),
    "fedadmm per client": lambda: fv.FedADMM(gamma=[0.2, 0.4, 0.6, 0.8, 1.0, 1.2]),
    "fedpd": lambda: fv.FedPD(),
    "fedpd skip=0.5": lambda: fv.FedPD(gamma=0.5, skip=0.5),
    "feddyn": lambda: fv.FedDyn(),
    "fedvra": lambda: fv.FedVRA(),
    "fedvra given": lambda: fv.FedVRA(gamma=0.5, a=1.5, d=1.2),
    "fedvra gamma given": lambda: fv.FedVRA(gamma=0.5),
    "fedvra d=1/p": lambda: fv.FedVRA(gamma=0.5, a=1, d=lambda cohort: 1 / cohort.p),
    "fedvra over rounds": lambda: fv.FedVRA(gamma=0.5, a=fv.over_rounds(lambda r: 2 / (1 + r)), d=1),
    "fedvrau": lambda: fv.FedVRAU(),
    "fedvrau given": lambda: fv.FedVRAU(gamma=0.5, a=1.5, d=1.2),
}

WORK: dict[str, Callable[[], fv.Work]] = {
    "one step": lambda: fv.Steps(1),
    "three steps": lambda: fv.Steps(3),
    "unequal steps": lambda: fv.Steps(UNEQUAL),
}

ANYWHERE: dict[str, Callable[[], Options]] = {
    "workers=2": lambda: {"workers": 2},
    "workers=2, one step": lambda: {"workers": 2, "work": fv.Steps(1)},
    "workers=2, drop, full": lambda: {"workers": 2, "drop": 0.3, "sampler": fv.Full()},
    "drop": lambda: {"drop": 0.3},
    "drop, one step": lambda: {"drop": 0.3, "work": fv.Steps(1)},
    "median norm": lambda: {"refuse": fv.MedianNorm(1.1), "sampler": fv.Full()},
    "median norm, workers=2": lambda: {"refuse": fv.MedianNorm(1.1), "sampler": fv.Full(), "workers": 2},
    "multi-krum": lambda: {"refuse": fv.MultiKrum(1), "sampler": fv.Full()},
    "full": lambda: {"sampler": fv.Full()},
    "bernoulli": lambda: {"sampler": fv.Bernoulli(0.5)},
    "availability": lambda: {"sampler": fv.Availability(fv.Uniform(4), period=4, duty=0.5)},
    "weighted": lambda: {"sampler": fv.Weighted([0.25, 0.75, 0.5, 0.5, 0.5, 0.5])},
    "cyclic": lambda: {"sampler": fv.Cyclic(2, reshuffle=True)},
    "power of choice": lambda: {"sampler": fv.PowerOfChoice(2, candidates=4)},
    "replay": lambda: {"sampler": fv.Replay([[0, 1, 4], [], [2, 3, 4]])},
    "weights": lambda: {"weights": [1, 2, 3, 1, 2, 3]},
    "lr over rounds": lambda: {"lr": fv.over_rounds(lambda r: 0.05 / (1 + r))},
    "lr per client": lambda: {"lr": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]},
    "speeds": lambda: {"work": fv.Speeds([1, 0.5, 1, 0.25, 1, 1], fv.Steps(4))},
    "bfloat16 state": lambda: {"state_dtype": torch.bfloat16},
    "state on disk": lambda: {"memory_limit": 0},
    "diagnostics": lambda: {"diagnostics": 1},
    "another seed": lambda: {"seed": 11},
}  # fmt: skip

OF_MODELS: dict[str, Callable[[torch.dtype], Options]] = {
    "block, weight decay": lambda dtype: supervised(dtype, "auto", weight_decay=0.1),
    "traced, weight decay": lambda dtype: supervised(dtype, "traced", weight_decay=0.1),
    "eager, weight decay": lambda dtype: supervised(dtype, "eager", weight_decay=0.1),
    "block, mean squared error": lambda dtype: supervised(
        dtype, "auto", loss=lambda out, t: (out - nn.functional.one_hot(t, CLASSES)).square().mean()
    ),
    "block, dirichlet": lambda dtype: _dirichlet(dtype, "auto"),
    "traced, dirichlet": lambda dtype: _dirichlet(dtype, "traced"),
    "eager, dirichlet": lambda dtype: _dirichlet(dtype, "eager"),
    "dirichlet, drop_last": lambda dtype: _dirichlet(dtype, "auto") | {"drop_last": True, "weights": "samples"},
    "random epochs": lambda dtype: _dirichlet(dtype, "auto") | {"work": fv.RandomEpochs(1, 3)},
    "whole data": lambda dtype: supervised(dtype, "auto") | {"batch_size": None},
    "blocks of two": lambda dtype: supervised(dtype, "auto") | {"solver": fv.SolverSettings(block=2)},
    "dropout": lambda dtype: (
        supervised(dtype, "auto") | {"problem": fv.Supervised(lambda: mlp(dtype, nn.Dropout(0.3)))}
    ),
    "frozen": lambda dtype: supervised(dtype, "auto") | {"problem": fv.Supervised(lambda: _frozen(dtype))},
    "pictures, local buffers": lambda dtype: pictures(dtype, buffers="local"),
    "pictures, eager": lambda dtype: pictures(dtype) | {"solver": fv.SolverSettings(path="eager")},
    "pictures, block": lambda dtype: (
        pictures(dtype)
        | {"problem": fv.Supervised(lambda: convnet(dtype, norm=False)), "solver": fv.SolverSettings(path="block")}
    ),
    "semisupervised, ball": lambda dtype: semisupervised(dtype, constraint=fv.Ball(1.0), weight_decay=0.01),
    "semisupervised, box": lambda dtype: semisupervised(dtype, constraint=fv.Box(-0.2, 0.2), steps_y=2, lr_y=0.5),
    "semisupervised, product": lambda dtype: semisupervised(
        dtype, constraint=fv.Product.of_parameters(mlp(dtype), {"0.weight": fv.NonNegative(), "2.bias": fv.Simplex()})
    ),
}


def _dirichlet(dtype: torch.dtype, path: str) -> Options:
    return supervised(dtype, path) | {"data": points(dtype, fv.Dirichlet(0.5)), "work": fv.Epochs(2)}


def _frozen(dtype: torch.dtype) -> nn.Module:
    model = mlp(dtype)
    next(model.parameters()).requires_grad_(False)
    return model


class Outcome(NamedTuple):
    """What a run leads to."""

    x0: torch.Tensor
    lam: torch.Tensor
    records: list[dict[str, Any]]
    kept: dict[str, torch.Tensor] = {}  # noqa: RUF012 - never changed
    """What else there is to compare: the clients' duals and second blocks, buffers."""
    history: fv.History | None = None


class Case(NamedTuple):
    name: str
    dtype: str
    run: Callable[[], Outcome]


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for problem in PROBLEMS:
            if problem == "clustering" and dtype == "float64":
                continue
            for algorithm in ALGORITHMS:
                for work in _work(problem):
                    yield _case(f"{problem} | {algorithm} | {work}", dtype, PROBLEMS[problem], algorithm, WORK[work])
        for problem in ("block", "pictures", "quadratic", "two-block"):
            for algorithm in ("scaffold", "fedvra"):
                for name, options in ANYWHERE.items():
                    title = f"{problem} | {algorithm} | {name}"
                    yield _case(title, dtype, PROBLEMS[problem], algorithm, WORK["unequal steps"], options)
        for name, make in OF_MODELS.items():
            for algorithm in ("fedprox", "fedvra"):
                for work in _work(name):
                    yield _case(f"{name} | {algorithm} | {work}", dtype, make, algorithm, WORK[work])
        for problem in ("quadratic", "two-block"):
            for algorithm in (
                name for name in ALGORITHMS if "skip" not in name
            ):  # rounds without communication need the simulator
                yield Case(
                    f"flower | {problem} | {algorithm} [{dtype}]",
                    dtype,
                    lambda p=problem, a=algorithm, d=dtype: _on_flower(PROBLEMS[p](DTYPES[d]), ALGORITHMS[a]()),
                )
    yield _case(
        "block | fedvra | bfloat16 arithmetic",
        "float32",
        PROBLEMS["block"],
        "fedvra",
        WORK["three steps"],
        lambda: {"solver": fv.SolverSettings(precision="bfloat16")},
    )


def _work(problem: str) -> list[str]:
    """Several clients at once need equal work; one at a time takes the same way whatever the others do."""
    return [name for name in WORK if name != "three steps" or "block" in problem]


def _case(
    title: str,
    dtype: str,
    problem: Callable[[torch.dtype], Options],
    algorithm: str,
    work: Callable[[], fv.Work],
    options: Callable[[], Options] = dict,
) -> Case:
    def run() -> Outcome:
        made = ALGORITHMS[algorithm]()
        given: Options = {"work": work(), "seed": 3, "workers": 1, "rounds": ROUNDS}
        given |= {"sampler": _sampler(made), **problem(DTYPES[dtype]), **options()}
        history = fv.simulate(made, **given)
        kept = {f"dual {i}": row for i, row in history.duals.items()} | {f"y {i}": row for i, row in history.y.items()}
        if history.aux is not None:
            kept["buffers"] = history.aux
        return Outcome(history.x0, history.lam, history.metrics, kept, history)

    return Case(f"{title} [{dtype}]", dtype, run)


def _sampler(algorithm: fv.Algorithm) -> fv.Sampler:
    return fv.Full() if algorithm.everyone_takes_part else fv.Uniform(3)


def _on_flower(given: Options, algorithm: fv.Algorithm) -> Outcome:
    """The same rounds by Flower's messages, in memory."""
    from bits.flower import play

    with tempfile.TemporaryDirectory() as folder:
        options = {**given, "sampler": _sampler(algorithm), "work": fv.Steps(UNEQUAL), "seed": 3, "clients": CLIENTS}
        strategy = play(algorithm, options, Path(folder), ROUNDS)
        return Outcome(strategy.books.x0.clone(), strategy.books.lam.clone(), strategy.records)
