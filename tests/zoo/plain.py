"""FedAvg and FedVRA as a plain loop over tensors with ``loss.backward()``: what ``fv.simulate`` is measured against.

Nothing of fedvra's arithmetic is used, only the order in which samples are drawn and the seeds of a client's random numbers.
Every client starts each round with a module that was made anew, so whatever a module keeps in Python is at its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.streams import Purpose, stream
from fedvra.data.batches import batch_schedule
from zoo.cases import Loss, Subject, Tree, quiet_generators, seed_all

State = dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """A run: who takes part, how long, and the coefficients of FedVRA (gamma = 0: FedAvg)."""

    cohorts: list[list[int]]
    batch_size: int | None
    epochs: int = 1
    lr: float = 0.1
    decay: float = 0.01
    gamma: float = 0.0
    a: float = 0.0
    d: float = 1.0
    seed: int = 7
    local_buffers: bool = False
    drop_last: bool = False
    dtype: torch.dtype = torch.float64


@dataclass
class Outcome:
    """What the loop ends with, by the names of the module's tensors."""

    trained: State
    statistics: State
    """Float buffers, and frozen parameters too: as they are after the last round."""
    changed: set[str]
    """Those of them that training changed."""
    lam: State
    losses: list[float] = field(default_factory=list)
    """The mean training loss of each round."""


def run(
    build: Callable[[], Subject],
    data: tuple[Tree, Tree],
    parts: list[np.ndarray],
    setting: Setting,
    initial: State | None = None,
    float_targets: bool = False,
) -> Outcome:
    """Run all rounds. ``initial`` replaces the weights that ``build`` gives; ``parts`` are the clients' row numbers."""
    inputs, targets = cast(data[0], setting.dtype), cast(data[1], setting.dtype, labels=True)
    if float_targets:
        targets = targets.to(setting.dtype)
    first = build()[0]
    prepare(first, pick(inputs, parts[0][:2]))
    start = {**tensors(first), **(initial or {})}
    names = [name for name, p in first.named_parameters() if p.requires_grad]
    x0 = {name: start[name] for name in names}
    shared = {name: value for name, value in start.items() if name not in x0}
    total = len(parts)
    lam = {name: torch.zeros_like(value) for name, value in x0.items()}
    duals: dict[int, State] = {}
    kept: dict[int, State] = {}
    outcome = Outcome(x0, shared, set(), lam)
    for r, cohort in enumerate(setting.cohorts):
        moves, ends, losses = [], [], []
        for client in cohort:
            before = kept.get(client, shared) if setting.local_buffers else shared
            dual = duals.get(client, {name: torch.zeros_like(value) for name, value in x0.items()})
            with quiet_generators(0):
                module, loss = build()
                prepare(module, pick(inputs, parts[0][:2]))
                load(module, {**x0, **before})
                batches = [
                    (pick(inputs, rows), pick(targets, rows)) for rows in schedule(parts[client], r, client, setting)
                ]
                seed_all(int(stream(setting.seed, Purpose.MODEL_NOISE, r, client).integers(2**62)))
                losses.append(local_work(module, loss, batches, x0, dual, setting))
            after = tensors(module)
            move = {name: after[name] - x0[name] for name in names}
            alpha = setting.a * setting.gamma
            duals[client] = {name: dual[name] - alpha * move[name] for name in names}
            end = {name: after[name] for name in shared}
            outcome.changed |= {name for name in shared if not torch.equal(end[name], before[name])}
            kept[client] = end
            moves.append(move)
            ends.append(end)
        for name in names:
            moved = torch.stack([move[name] for move in moves]).sum(0)
            if setting.gamma:
                lam[name] = lam[name] - setting.a * setting.gamma * moved / total
                x0[name] = x0[name] + setting.d * moved / total - lam[name] / setting.gamma
            else:
                x0[name] = x0[name] + moved / len(cohort)
        shared = {name: mean([end[name] for end in ends]) for name in shared}
        outcome.losses.append(float(np.mean(losses)))
    outcome.statistics = shared
    return outcome


def local_work(
    module: nn.Module, loss: Loss, batches: list[tuple[Tree, Tree]], x0: State, dual: State, setting: Setting
) -> float:
    """One client's steps; the mean of its losses."""
    module.train()
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    values = []
    for inputs, targets in batches:
        for p in module.parameters():
            p.grad = None
        value = loss(call(module, inputs), targets)
        value.backward()
        values.append(float(value.detach()))
        with torch.no_grad():
            for name, p in trained.items():
                g = torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad
                p -= setting.lr * (g + setting.decay * p - dual[name] + setting.gamma * (p - x0[name]))
    return float(np.mean(values))


def schedule(part: np.ndarray, round: int, client: int, setting: Setting) -> list[np.ndarray]:
    """The row numbers of every batch of a client's round."""
    size = setting.batch_size
    if size is None or len(part) <= size:
        return [part] * setting.epochs
    rng = stream(setting.seed, Purpose.BATCHES, round, client)
    if setting.drop_last:
        per_epoch = len(part) // size
        orders = [rng.permutation(len(part)) for _ in range(setting.epochs)]
        return [part[order[k * size : (k + 1) * size]] for order in orders for k in range(per_epoch)]
    steps = setting.epochs * -(-len(part) // size)
    return [part[rows] for rows in batch_schedule(len(part), size, steps, rng)]


def call(module: nn.Module, inputs: Tree) -> object:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def cast(tree: Tree, dtype: torch.dtype, labels: bool = False) -> Tree:
    """Floats in the model's dtype, bytes as images in [0, 1], whole numbers as they are, or int64 where they are labels."""
    if isinstance(tree, dict):
        return {key: cast(value, dtype, labels) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(cast(value, dtype, labels) for value in tree)
    if labels and not tree.is_floating_point():
        return tree.long()
    if tree.dtype == torch.uint8:
        return tree.to(dtype) / 255
    return tree.to(dtype) if tree.is_floating_point() else tree


def pick(tree: Tree, rows: np.ndarray) -> Tree:
    if isinstance(tree, dict):
        return {key: pick(value, rows) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(pick(value, rows) for value in tree)
    return tree[torch.from_numpy(rows)]


def prepare(module: nn.Module, inputs: Tree) -> None:
    """Lazy modules learn their shapes from one batch."""
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        with torch.no_grad():
            module.eval()
            call(module, inputs)


def tensors(module: nn.Module) -> State:
    """Copies of all parameters and float buffers: whole numbers are counters, which start anew with each client."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.detach().clone() for name, t in named if t.is_floating_point()}


@torch.no_grad()
def load(module: nn.Module, state: State) -> None:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in state.items():
        named[name].copy_(value)


def mean(values: list[Tensor]) -> Tensor:
    """What is the same for all stays so to the bit, infinities included."""
    if all(torch.equal(value, values[0]) for value in values):
        return values[0]
    return torch.stack(values).mean(0)
