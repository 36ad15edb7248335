"""One case through ``fv.simulate`` and through the plain loop, and the comparison of the two."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import fedvra as fv
from zoo import plain
from zoo.cases import Case, Loss

CLIENTS = 4
SOME = [[0, 2, 3], [1, 2, 3]]
EVERYONE = [[0, 1, 2, 3]] * 2
SCALE_FLOOR = {torch.float64: 1e-3, torch.float32: 1e-2}
"""A tensor smaller than this is measured against this: where a gradient is truly zero there is only rounding."""
SINGLE = 32 * torch.finfo(torch.float32).eps
"""Per step in float32: a step rounds a handful of sums, and what it leaves is carried through the steps that follow."""


@dataclass(frozen=True)
class Shape:
    """How samples fall into batches, and by which algorithm they are learnt from."""

    samples: int
    setting: plain.Setting
    steps: int
    """Steps of one client over the whole run, at most."""

    def algorithm(self) -> fv.Algorithm:
        s = self.setting
        return fv.FedVRA(gamma=s.gamma, a=s.a, d=s.d) if s.gamma else fv.FedAvg()


VRA = {"gamma": 0.5, "a": 2.0, "d": 4 / 3}
SHAPES = {
    "even": Shape(24, plain.Setting(SOME, batch_size=3), steps=4),
    "odd": Shape(26, plain.Setting(SOME, batch_size=4, epochs=2, **VRA), steps=8),
    "whole": Shape(24, plain.Setting(SOME, batch_size=None, epochs=3, **VRA), steps=6),
    "one step": Shape(24, plain.Setting(EVERYONE, batch_size=None, gamma=0.5, a=2.0), steps=2),
}


def shape_of(case: Case, name: str, dtype: torch.dtype) -> Shape:
    shape = SHAPES[name]
    setting = replace(shape.setting, lr=case.lr, local_buffers=case.buffers == "local", dtype=dtype)
    return replace(shape, setting=setting)


def federated(case: Case, shape: Shape) -> fv.FederatedData:
    return fv.split(case.data(shape.samples), fv.IID(), clients=CLIENTS, seed=0)


def simulate(
    case: Case,
    shape: Shape,
    path: str = "auto",
    workers: int = 1,
    subject: tuple[nn.Module, Loss] | None = None,
    **changes: Any,
) -> fv.History:
    """The run by the library; ``changes`` replace arguments of ``fv.simulate``."""
    s = shape.setting
    module, loss = subject or case.build(s.dtype)
    said = {} if case.buffers is None else {"buffers": case.buffers}
    arguments: dict[str, Any] = {
        "problem": fv.Supervised(module, loss=loss, weight_decay=s.decay, **said),
        "data": federated(case, shape),
        "sampler": fv.Replay(s.cohorts),
        "work": fv.Epochs(s.epochs),
        "rounds": len(s.cohorts),
        "lr": s.lr,
        "batch_size": s.batch_size,
        "seed": s.seed,
        "workers": workers,
        "solver": fv.SolverSettings(path=path),
        "deploy": "x0",  # what the plain loop comes to
    }
    return fv.simulate(shape.algorithm(), **{**arguments, **changes})


@lru_cache(maxsize=64)
def expected(case: Case, name: str, dtype: torch.dtype) -> plain.Outcome:
    """The plain loop's outcome, made once for all paths of a case."""
    shape = shape_of(case, name, dtype)
    initial = None
    if case.lazy:
        initial = {n: t.detach().clone() for n, t in simulate(case, shape, rounds=0).model().named_parameters()}
    data = federated(case, shape)
    parts = [data.part(client) for client in range(CLIENTS)]
    return plain.run(
        lambda: case.build(dtype), case.data(shape.samples), parts, shape.setting, initial, case.float_targets
    )


def path_of(history: fv.History) -> str:
    """eager, traced or block: the first that the run's own words name."""
    found = re.search(r"eager|traced|block", str(history.path))
    assert found, f"history.path names no path: {history.path}"
    return found[0]


def compare(case: Case, history: fv.History, name: str, dtype: torch.dtype) -> None:
    """Every tensor, the duals and the losses; frozen parameters and constant buffers to the bit."""
    want, shape = expected(case, name, dtype), shape_of(case, name, dtype)
    tolerance = case.tolerance if dtype == torch.float64 else SINGLE * shape.steps * case.single
    floor = SCALE_FLOOR[dtype]
    model = history.model()
    got = plain.tensors(model)
    trained = {n: t for n, t in got.items() if n in want.trained}
    wrong = deviations(trained, want.trained, tolerance, floor)
    statistics = {n: got[n] for n in want.changed if n in got}
    wrong += deviations(statistics, {n: want.statistics[n] for n in want.changed}, tolerance, floor)
    for n, value in want.statistics.items():
        if n not in want.changed and not torch.equal(got[n], value):
            wrong.append(f"{n}: must not move, moved by {float((got[n] - value).abs().max()):.1e}")
    assert not wrong, f"{len(wrong)} of {len(got)} tensors are wrong:\n  " + "\n  ".join(wrong[:12])

    size = sum(t.numel() for t in want.trained.values())
    assert history.x0.numel() == size, f"x has {history.x0.numel()} numbers, {size} are trained"
    lam = dict(zip(want.lam, history.lam.split([t.numel() for t in want.lam.values()]), strict=True))
    lam = {n: t.view(want.lam[n].shape) for n, t in lam.items()}
    wrong = deviations(lam, want.lam, 10 * tolerance, floor)
    assert not wrong, "the server's dual is wrong:\n  " + "\n  ".join(wrong[:12])

    losses = [record["train_loss"] for record in history.metrics]
    for r, (mine, theirs) in enumerate(zip(losses, want.losses, strict=True)):
        assert abs(mine - theirs) <= 10 * tolerance * max(abs(theirs), 1.0), f"round {r}: loss {mine}, not {theirs}"


def deviations(got: plain.State, want: plain.State, tolerance: float, floor: float) -> list[str]:
    wrong = [f"{name}: missing" for name in want if name not in got]
    for name, value in want.items():
        if name in got:
            off = deviation(got[name], value, floor)
            if not off <= tolerance:
                wrong.append(f"{name}: off by {off:.1e} of its scale")
    return wrong


def deviation(got: Tensor, want: Tensor, floor: float) -> float:
    """The largest difference, as a part of the largest entry; a NaN is infinitely wrong."""
    if got.shape != want.shape:
        return float("inf")
    if not want.numel() or torch.equal(got, want):
        return 0.0
    off = float((got.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(floor))
    return off if off == off else float("inf")
