"""Private local steps: the gradient of every record by itself, clipped, summed and noised; see ``fedvra.core.record_dp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedvra.core import rule
from fedvra.core.block import Block
from fedvra.core.errors import UsageError, require
from fedvra.core.optimisers import LocalOptimiser
from fedvra.core.record_dp import Guard
from fedvra.data import trees
from fedvra.local.client_batches import ClientBatches
from fedvra.local.loan import Batch
from fedvra.local.stepping import begin
from fedvra.local.subject import Subject

NUMBERS = 1 << 25
"""Of gradients of single records, that are held at once."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class PerRecord:
    """One client's private steps on a model."""

    def __init__(self, subject: Subject, feed: ClientBatches) -> None:
        self.subject, self.feed, self.spec = subject, feed, subject.spec
        self._gradients: Callable[..., dict[str, Tensor]] = vmap(
            grad(self._loss), in_dims=(None, 0, 0), randomness="different"
        )

    def _loss(self, parameters: dict[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        """Of one record, as a batch of one: no other can have a part in it."""
        one, target = (trees.map(lambda t: t.unsqueeze(0), each) for each in (inputs, targets))
        return self.subject.loss(_called(self.subject.module, parameters, one), target)

    def gradients(self, x_P: Tensor, batch: Batch) -> Tensor:
        """g_j of every record of a batch [B, P]."""
        found = self._gradients(self.spec.views(x_P), *batch)
        return torch.cat([found[name].flatten(1) for name in self.spec.names], dim=1)

    def clipped_sum(self, x_P: Tensor, rows: Any, clip: float, rng: np.random.Generator | None) -> Tensor:
        """sum_j g_j*min(1, C/|g_j|) over some records, a few at a time; zero where there are none."""
        total = torch.zeros_like(x_P)
        few = max(1, NUMBERS // self.spec.size)
        for start in range(0, len(rows), few):
            batch = self.feed.batch(rows[start : start + few], rng)
            total += rule.clipped_sum(self.gradients(x_P, batch), clip)
        return total

    def steps(self, terms: rule.Terms, block: Block, guard: Guard, local: LocalOptimiser) -> Tensor:
        """One client's Q_i steps 11 with noised gradients; returns its move x_i - anchor."""
        (client,), (count,), (eta,) = block.clients.tolist(), block.steps.tolist(), block.eta.tolist()
        dp, part = guard.rule, self.feed.data.part(client)
        (rate,), (expected,) = (of(guard.samples, self.feed.batch_size).tolist() for of in (dp.rates, dp.divisors))
        chance = guard.chance(block.seed, block.round, client)
        rng = chance.augmentation() if self.feed.augments else None
        x = terms.anchor.detach().clone()
        step = rule.affine(terms) if local.plain else begin(local, terms, count, x, torch.zeros_like(x))
        self.subject.point_at(x, None)
        self.subject.restart(chance.key())
        for _ in range(count):
            total = self.clipped_sum(x, part[chance.batch(len(part), rate)], dp.clip, rng)
            z = torch.from_numpy(chance.normal(len(x))).to(total) if dp.noise else total
            rule.advance_(x, rule.noised_gradient(total, z, dp.clip, dp.noise, expected), eta, step)
        self.subject.finish(x, None)
        return x - terms.anchor

    def check(self) -> None:
        """Raise UsageError where records cannot be told apart in a model's gradient."""
        module, feed = self.subject.module, self.feed
        for name, layer in module.named_modules():
            require(
                not isinstance(layer, BATCH_NORMS),
                f"privacy: layer {name or 'model'!r} ({type(layer).__name__}) mixes the records of a batch, so that the "
                "part of one has no bound: use GroupNorm or LayerNorm.",
            )
        require(
            not self.subject.statistics,
            f"privacy: training changes {', '.join(held.name for held in self.subject.statistics[:3])} besides the parameters, "
            "and that is made of records without noise: use a model without running statistics.",
        )
        require(feed.stacks, "privacy: collate makes batches of any shape, from which single records cannot be taken.")
        few = feed.data.part(int(np.argmax(feed.data.sizes)))[:2]
        try:
            self.gradients(self.subject.gather(), feed.batch(few))
        except (
            Exception
        ) as error:  # whatever torch.func says of an operation that it cannot do for many records at once
            lines = str(error).strip().splitlines() or [""]
            raise UsageError(
                "privacy: the gradients of single records cannot be computed by torch.func.vmap for this model and loss "
                f"({type(error).__name__}: {lines[0]})."
            ) from error


def _called(module: nn.Module, parameters: dict[str, Tensor], inputs: Any) -> Any:
    """``trees.call`` with these parameters in place of the module's own."""
    if isinstance(inputs, dict):
        return functional_call(module, parameters, (), inputs)
    return functional_call(module, parameters, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,))
