"""What a block's local steps came to: written down, compressed, or counted in whole units; and the sums that it is added to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import BlockTerms, Rows
from fedvra.core.cohort import Floats
from fedvra.core.compressor import Compressor, Shrunk
from fedvra.core.loops import Done
from fedvra.core.streams import Purpose, stream
from fedvra.core.whole import Counting, check_range, to_whole


@dataclass(frozen=True)
class Shares:
    """A part of a cohort's place for its sums of steps 19 and 20, and the weights of its clients in them."""

    model: Tensor
    """Becomes the sum of omega_i*w_i*D_i [P]."""
    model_weight: Floats
    dual: Tensor | None = None
    """Becomes the sum of omega_i*alpha_i*D_i [P]; None where it is a multiple of the other."""
    dual_weight: Floats | None = None
    aux: Tensor | None = None
    """Becomes the sum of omega_i*(float buffers) [K]."""
    aux_weight: Floats | None = None
    mean: Tensor | None = None
    """Becomes the sum of omega_i*D_i [P]; None where it is a multiple of another, or nobody asks for it."""
    mean_weight: Floats | None = None

    def weighted(self) -> list[tuple[Tensor, Floats]]:
        """The sums over moves, with their weights."""
        sums = [(self.model, self.model_weight)]
        if self.dual is not None and self.dual_weight is not None:
            sums.append((self.dual, self.dual_weight))
        if self.mean is not None and self.mean_weight is not None:
            sums.append((self.mean, self.mean_weight))
        return sums


class Moves(ABC):
    """The result of a block's local steps; a solver's own memory, good until its next call."""

    def __init__(self, terms: BlockTerms, losses: Tensor) -> None:
        self.terms = terms
        self.losses = losses
        """Each client's mean training loss [M]; where it was computed, since reading it from an accelerator means to wait."""
        self.done: Done | None = None
        """What the clients did, where a loop of their own decided on it."""

    @abstractmethod
    def move(self, k: int) -> Tensor:
        """x_i - anchor."""

    def sent(self, k: int) -> Tensor:
        """D_i = x_i - x0, what a client sends (step 15)."""
        terms, move = self.terms, self.move(k)
        return move + (terms.anchors[k] - terms.sent.x0) if terms.own_anchors else move

    @abstractmethod
    def finish(
        self, shares: Shares | None, alphas: Floats | None, place: Callable[[int], Tensor | None]
    ) -> Iterator[Tensor]:
        """Add the clients' shares to the sums; then each one's new dual in turn (step 14), none where ``alphas`` is None."""


class WholeMoves(Moves):
    """Moves that were written down, one row per client."""

    def __init__(self, terms: BlockTerms, delta_MP: Tensor, losses: Tensor) -> None:
        super().__init__(terms, losses)
        self.delta = delta_MP

    def move(self, k: int) -> Tensor:
        return self.delta[k]

    def finish(
        self, shares: Shares | None, alphas: Floats | None, place: Callable[[int], Tensor | None]
    ) -> Iterator[Tensor]:
        terms, delta = self.terms, self.delta
        if shares is not None:
            sent = delta + (torch.stack(terms.anchors) - terms.sent.x0) if terms.own_anchors else delta
            rule.add_weighted_(shares.model, shares.model_weight, sent)
            if shares.dual is not None and shares.dual_weight is not None:
                rule.add_weighted_(shares.dual, shares.dual_weight, delta)
            if shares.mean is not None and shares.mean_weight is not None:
                rule.add_weighted_(shares.mean, shares.mean_weight, sent)
        if alphas is not None:
            for k, (one, alpha) in enumerate(zip(terms, alphas.tolist(), strict=True)):
                yield rule.dual_step(one.h, delta[k], alpha, out=place(k))


class CompressedMoves(Moves):
    """C(D_i) in place of D_i: what is sent, what the sums are made of, and what the dual moves by.

    The dual is the error feedback. What C left out of D_i is missing from lam_i too, and so shows again in the client's next
    move, which is corrected by that lam_i. Without duals (alpha = 0) a residual takes it up, which is kept like one.
    """

    def __init__(self, whole: Moves, compress: Compressor, residuals: Rows | None) -> None:
        super().__init__(whole.terms, whole.losses)
        self.done = whole.done
        self._whole, self._residuals = whole, residuals
        self._compress = compress if residuals is None else compress.contractive()
        self._shrunk: dict[int, Shrunk] = {}

    def move(self, k: int) -> Tensor:
        if k in self._shrunk:
            return self._compress.expand(self._shrunk[k], len(self.terms.sent.x0))
        delta = self._whole.move(k)
        if self._residuals is None:
            return self._sent(k, delta)
        sent, residual = rule.residual_step(delta, self._residuals.old(k), lambda owed: self._sent(k, owed))
        self._residuals.stage(k, residual)
        return sent

    def _sent(self, k: int, vector: Tensor) -> Tensor:
        block = self.terms.orders.block
        rng = stream(block.seed, Purpose.ROUNDING, block.round, int(block.clients[k]))
        self._shrunk[k] = self._compress.shrink(vector, rng)
        return self._compress.expand(self._shrunk[k], len(vector))

    def message(self, k: int) -> Tensor:
        """What a client sends, as bytes."""
        self.move(k)
        return self._compress.encode(self._shrunk[k], len(self.terms.sent.x0))

    def finish(
        self, shares: Shares | None, alphas: Floats | None, place: Callable[[int], Tensor | None]
    ) -> Iterator[Tensor]:
        weighted = [] if shares is None else shares.weighted()
        for k in range(len(self.terms)):
            delta = self.move(k)
            for total, weights in weighted:
                rule.add_weighted_(total, weights[k : k + 1], delta.unsqueeze(0))
            if alphas is not None:
                yield rule.dual_step(self.terms[k].h, delta, float(alphas[k]), out=place(k))


class CountedMoves(Moves):
    """One client's move in whole units, so that sums are exact: what is sent, and what the dual moves by.

    As with :class:`CompressedMoves` the dual, or else a residual, takes up what rounding and clipping left out.
    """

    def __init__(self, whole: Moves, counting: Counting, residuals: Rows | None) -> None:
        super().__init__(whole.terms, whole.losses)
        self.done, self.counting = whole.done, counting
        block, x0 = self.terms.orders.block, self.terms.sent.x0
        rng = stream(block.seed, Purpose.ROUNDING, block.round, int(block.clients[0]))
        self.delta = whole.sent(0)
        """D_i itself, before it is rounded."""

        def compress(vector: Tensor) -> Tensor:
            self.counted = counting.units.count(vector, rng)
            self.clipped = counting.units.clipped(vector)
            return counting.units.worth(self.counted, x0.dtype)

        if residuals is None:
            self._sent = compress(self.delta)
        else:
            self._sent, residual = rule.residual_step(self.delta, residuals.old(0), compress)
            residuals.stage(0, residual)
        self.second = None if counting.second is None else counting.second.count(self.delta, rng)
        if counting.second is not None:
            self.clipped = max(self.clipped, counting.second.clipped(self.delta))

    def move(self, k: int) -> Tensor:
        return self._sent

    def finish(
        self, shares: Shares | None, alphas: Floats | None, place: Callable[[int], Tensor | None]
    ) -> Iterator[Tensor]:
        """The new dual in grains."""
        if alphas is not None:
            c, o, lam = self.counting, self.terms.orders, self.terms.sent.lam
            held = torch.zeros_like(self.counted) if c.held is None else c.held
            taken = to_whole(o.sigma * c.omega * lam.double()) if o.sigma else None
            yield check_range(rule.whole_dual_step(held, taken, c.grains, self.counted))
