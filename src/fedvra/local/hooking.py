r"""Step 11 inside somebody else's training loop: a hook on the optimiser corrects every gradient, and counts the work.

Before each ``optimizer.step()`` the gradient of every parameter p becomes g + decay*p - h + gamma*(p - x0). Under momentum SGD
moves are linear in that gradient, so that the hook also knows how far a constant unit gradient would have been carried, T, from
the stepsizes and momenta that it sees: the same recurrence as in ``fedvra.core.optimisers``, at the true stepsizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedvra.core import rule
from fedvra.core.errors import require
from fedvra.local.flat import FlatSpec


class Hook:
    """On one optimiser, for one client's round."""

    def __init__(self, optimizer: Any, model: nn.Module, terms: rule.Terms) -> None:
        require(
            isinstance(optimizer, torch.optim.Optimizer),
            f"hook takes the torch.optim.Optimizer of your loop, got {type(optimizer).__name__}.",
        )
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        wanted = {id(p) for p in self.parameters}
        require(
            stepped == wanted,
            f"the optimiser steps on {len(stepped & wanted)} of the model's {len(wanted)} trainable parameters and on "
            f"{len(stepped - wanted)} others: give it those of work.model(), all of them.",
        )
        own = max(float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups)
        require(
            not (own and terms.decay),
            f"the optimiser has a weight decay ({own:g}) and so has the problem ({terms.decay:g}), which is added for you: set "
            "one of them to 0.",
        )
        step = rule.corrected(terms)
        self.pull = step.pull
        spec = FlatSpec.of_parameters(model)
        self.shifts = [None] * len(self.parameters) if step.shift is None else list(spec.views(step.shift).values())
        self.steps, self.carried = 0, 0.0
        self._velocity: float | None = None
        self._handle = optimizer.register_step_pre_hook(self._before)

    def remove(self) -> None:
        self._handle.remove()

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._count(optimizer)
        closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._correct()
            return None

        def corrected() -> Any:  # the gradient is not there yet: it is computed within the step
            loss = closure()
            self._correct()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": corrected}
        return (args[0], corrected, *args[2:]), kwargs

    @torch.no_grad()
    def _correct(self) -> None:
        for p, shift in zip(self.parameters, self.shifts, strict=True):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.layout != torch.strided:
                p.grad = p.grad.to_dense()
            rule.correct_(p.grad, p, self.pull)
            if shift is not None:
                p.grad.add_(shift)

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps += 1
        facts = {_facts(group) for group in optimizer.param_groups}
        if type(optimizer) is not torch.optim.SGD or len(facts) > 1:
            self.carried = math.nan
            return
        ((lr, momentum, dampening, nesterov),) = facts
        fresh = 1.0 if self._velocity is None else 1.0 - dampening
        self._velocity = momentum * (self._velocity or 0.0) + fresh if momentum else 1.0
        self.carried += lr * (1.0 + momentum * self._velocity if nesterov else self._velocity)


def _facts(group: dict[str, Any]) -> tuple[float, float, float, bool]:
    """What of a group of torch.optim.SGD says how far it moves; going uphill is going -lr."""
    lr = float(group["lr"]) * (-1.0 if group.get("maximize") else 1.0)
    return lr, float(group.get("momentum", 0.0)), float(group.get("dampening", 0.0)), bool(group.get("nesterov"))


def flattened(model: nn.Module) -> Tensor:
    """The trainable parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
