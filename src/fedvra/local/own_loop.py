"""One client's work in one round, for whoever drives the steps: the library, a few lines by hand, or one's own training loop.

def train(work):
    model = work.model()
    optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=work.eta, momentum=0.9))
    for inputs, targets in work.batches():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        work.report(loss)
    return work.move()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core import rule
from fedvra.core.block import Block, BlockTerms, Private
from fedvra.core.errors import UsageError, require
from fedvra.core.loops import Done
from fedvra.core.step import Moves, WholeMoves
from fedvra.core.streams import noise_key
from fedvra.data import trees
from fedvra.local.flat import FlatSpec
from fedvra.local.hooking import Hook, flattened
from fedvra.local.protocol import Solver
from fedvra.local.randomness import kept_generators, seed_all
from fedvra.local.solver import SupervisedSolver

if TYPE_CHECKING:
    from fedvra.problems.base import Problem


@dataclass
class _Tally:
    """What a loop did so far."""

    losses: list[float] = field(default_factory=list)
    model: nn.Module | None = None
    hook: Hook | None = None
    by_hand: int = 0
    """Calls of LocalWork.step."""
    solved: bool = False


@dataclass(frozen=True)
class LocalWork:
    """One client's work in one round: all that steps 9-13 need.

    >>> import fedvra as fv
    >>> def train(work: fv.LocalWork) -> None:  # simulate(..., local=fv.Loop(train)); examples/own_loop.py is a whole one
    ...     for inputs, targets in work.batches():
    ...         ...
    """

    client: int
    round: int
    """Counted from 0."""
    steps: int
    """Q_i, as many as were asked for."""
    eta: float
    x0: Tensor
    """The global model, flat [P]."""
    terms: rule.Terms
    """What step 11 adds to the gradient."""
    problem: Problem[Any]
    data: Any
    context: Any
    """Flower's, on a federation; None in a simulation."""
    _solver: Solver
    _block: Block
    _private: Private
    _solve: Callable[[], Moves]
    _tally: _Tally = field(default_factory=_Tally)

    def solve(self) -> Tensor:
        """Take the local steps as the simulator does; returns the move x_i - x0."""
        moves = self._solve()
        self._tally.losses[:] = moves.losses.tolist()
        self._tally.solved = True
        return moves.move(0)

    def step(self, x: Tensor, g: Tensor) -> Tensor:
        """Step 11 from x with gradient g, for those who drive the steps by hand: return x - work.x0 after Q_i of them."""
        self._tally.by_hand += 1
        h = torch.zeros_like(x) if self.terms.h is None else self.terms.h
        return rule.local_step(x, g, h, self.x0, self.eta, float(self.terms.gamma), self.terms.decay)

    # -- a loop of one's own -------------------------------------------------------------------------------------------------

    def model(self, module: nn.Module | None = None) -> nn.Module:
        """A copy of the problem's model at x0, ready to be trained; or ``module``, with x0 put into it.

        ``module`` may be another class, such as a LightningModule around the network: its trainable parameters must be those of
        the problem's model, in the same order.
        """
        aux = None if self._private.aux is None else self._private.aux[0]
        made = self._supervised().problem.to_module(self.x0, aux)
        if module is not None:
            mine, theirs = FlatSpec.of_parameters(module), FlatSpec.of_parameters(made)
            require(
                mine.shapes == theirs.shapes and mine.dtype == theirs.dtype,
                f"the model given to work.model has trainable parameters of shapes {_shown(mine)}, the problem's has "
                f"{_shown(theirs)}: they must be the same, in the same order.",
            )
            mine.scatter(self.x0, module)
            named = dict(module.named_buffers())
            for name, values in self._statistics(made).items():
                named[_matching(name, named)].copy_(values)
            made = module
        self._tally.model = made.train()
        return made

    def hook(self, optimizer: Any) -> Any:
        """Have this optimiser step as step 11 asks; it is given back.

        Before each ``optimizer.step()`` the gradient g of a parameter p becomes g + decay*p - h + gamma*(p - x0). What the loop
        itself does to gradients before, clipping say, is done to g alone. Steps and their stepsizes are counted.
        """
        tally = self._tally
        if tally.model is None:
            raise UsageError("say first which model is trained: model = work.model(), or work.model(your_own).")
        require(tally.hook is None, "a client's work has one optimiser: work.hook was called twice.")
        tally.hook = Hook(optimizer, tally.model, self.terms)
        return optimizer

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """(inputs, targets) of each of the Q_i steps, the very batches that :meth:`solve` would take."""
        feed = self._supervised().feed
        schedule = feed.schedule(self._block, self.client, self.steps)
        return feed.batches(schedule, feed.augmentation(self._block, self.client))

    def dataset(self) -> torch.utils.data.Dataset[tuple[Any, Any]]:
        """This client's samples, for a DataLoader of one's own: items are (input, target)."""
        return _Samples(self._supervised(), self.client)

    def report(self, loss: Tensor | float) -> None:
        """Note the training loss of a step; the round's record has the mean. Without a word it is f_i at x0."""
        self._tally.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))

    def move(self) -> Tensor:
        """x_i - x0, what a client sends: where the model is now."""
        model = self._tally.model
        if model is None:
            raise UsageError("there is no model whose move could be told: train the one that work.model() gives.")
        return flattened(model).to(self.x0.device) - self.x0

    def _supervised(self) -> SupervisedSolver:
        if not isinstance(self._solver, SupervisedSolver):
            raise UsageError(
                f"{type(self.problem).__name__} has no model and batches to give: use work.x0 and work.step(x, g)."
            )
        return self._solver

    def _statistics(self, module: nn.Module) -> dict[str, Tensor]:
        """The statistics that training changes, as ``module`` has them, by the names of the problem's model."""
        if self._private.aux is None:
            return {}
        buffers = dict(module.named_buffers())
        return {name: buffers[_matching(name, buffers)] for name in self._supervised().subject.aux_spec.names}

    def _finish(self) -> Done | None:
        """After the loop: its statistics, and what it did; None where it did what it was asked to do, as far as is known."""
        tally, aux = self._tally, self._private.aux
        if tally.model is not None and aux is not None:
            aux[0].copy_(torch.cat([b.detach().reshape(-1).to(aux) for b in self._statistics(tally.model).values()]))
        if tally.solved or (tally.hook is None and not tally.by_hand):
            return None
        steps, carried = tally.by_hand, tally.by_hand * self.eta
        if tally.hook is not None:
            steps, carried = tally.hook.steps, tally.hook.carried
            require(steps > 0, "the loop took no step with the optimiser that it gave to work.hook.")
        return Done(np.array([steps]), np.array([carried]))


class _Samples(torch.utils.data.Dataset[tuple[Any, Any]]):
    def __init__(self, solver: SupervisedSolver, client: int) -> None:
        self.feed, self.rows = solver.feed, solver.data.part(client)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        inputs, targets = self.feed.batch(self.rows[k : k + 1])
        return trees.map(lambda t: t[0], inputs), trees.map(lambda t: t[0], targets)


def own_steps(
    function: Callable[[LocalWork], Any],
    solver: Solver,
    problem: Problem[Any],
    data: Any,
    terms: BlockTerms,
    private: Private,
    block: Block,
    context: Any = None,
    counted: bool = True,
) -> Moves:
    """Steps 9-13 of one client by a function of the user's own.

    Args:
        counted: coefficients go by what it did, which comes with the move; otherwise it has to do what it was asked to do.
    """
    (one,), (client,) = terms.make(), block.clients.tolist()
    work = LocalWork(
        client=client,
        round=block.round,
        steps=int(block.steps[0]),
        eta=float(block.eta[0]),
        x0=one.anchor,
        terms=one,
        problem=problem,
        data=data,
        context=context,
        _solver=solver,
        _block=block,
        _private=private,
        _solve=partial(solver.solve, terms, private, block),
    )
    tally = work._tally
    with kept_generators(), torch.enable_grad():
        seed_all(noise_key(block.seed, block.round, client))
        try:
            move = function(work)
        finally:
            if tally.hook is not None:
                tally.hook.remove()
    require(
        isinstance(move, Tensor) and move.shape == one.anchor.shape and move.dtype == one.anchor.dtype,
        f"the train function must return the move x_i - x0, return work.move(): a {one.anchor.dtype} tensor of shape "
        f"{list(one.anchor.shape)}.",
    )
    require(
        private.y is None or tally.solved,
        "the problem has a second block y_i, whose steps a loop of one's own leaves out: return work.solve().",
    )
    require(
        terms.orders.guard is None or tally.solved,
        "privacy: a training loop of one's own sees records as they are: return work.solve().",
    )
    with torch.no_grad():
        done = work._finish()
        if not tally.losses and tally.hook is not None:
            tally.losses[:] = solver.losses(one.anchor, block.clients).tolist()
    loss = torch.tensor([np.mean(tally.losses or [0.0])], dtype=torch.float64)
    moves = WholeMoves(terms, move.detach().clone().unsqueeze(0), loss)
    if counted:
        moves.done = done or Done(block.steps, block.eta * block.steps)
    elif done is not None:
        _require_as_asked(done, work.steps, work.eta * float(terms.orders.local.amounts(block.steps)[0]))
    return moves


def _require_as_asked(done: Done, steps: int, carried: float) -> None:
    did, came_to = int(done.steps[0]), float(done.carried[0])
    require(
        did == steps and not abs(came_to - carried) > 1e-6 * carried,
        f"the train function took {did} steps, their stepsizes adding up to {came_to:.4g}, where {steps} and {carried:.4g} "
        "were asked for: follow work.steps and work.eta, or give the Strategy local=fv.Loop().",
    )


def _matching(name: str, named: dict[str, Tensor]) -> str:
    """The one buffer of this name, perhaps further inside."""
    found = [other for other in named if other == name or other.endswith(f".{name}")]
    require(len(found) == 1, f"the model given to work.model has {len(found)} buffers {name!r}, and needs one.")
    return found[0]


def _shown(spec: FlatSpec) -> str:
    return ", ".join(str(list(shape)) for shape in spec.shapes[:8]) + (", ..." if len(spec.shapes) > 8 else "")
