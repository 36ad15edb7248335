"""What a block of clients is given for a round, and what its clients keep from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core import rule
from fedvra.core.cohort import Floats, Ints
from fedvra.core.compressor import Compressor
from fedvra.core.optimisers import PLAIN, LocalOptimiser
from fedvra.core.record_dp import Guard
from fedvra.core.streams import Purpose, stream
from fedvra.core.whole import Counting


class Broadcast(NamedTuple):
    """What the server sends to everybody."""

    x0: Tensor
    lam: Tensor
    aux: Tensor | None = None
    """The statistics that training changes besides x [K], where there are any."""

    def rounded(self, compress: Compressor | None, seed: int, round: int) -> Broadcast:
        """As the clients see it, where downloads are compressed. They start from C(x0), and their moves are relative to it."""
        if compress is None:
            return self
        rng = stream(seed, Purpose.ROUNDING, round)
        return Broadcast(compress.apply(self.x0, rng), compress.apply(self.lam, rng), self.aux)


@dataclass(frozen=True)
class Block:
    """Local work for M clients at once: who, how many steps each, with which stepsize."""

    round: int
    seed: int
    clients: Ints
    steps: Ints
    eta: Floats
    path: str = ""
    """The path that whoever runs the round has settled on for all workers; empty: the solver's own choice."""
    check: NDArray[np.bool_] | None = None
    """Whose first step is to be compared with autograd."""

    def cut(self, span: slice) -> Block:
        """Some clients of the block."""
        check = None if self.check is None else self.check[span]
        return replace(self, clients=self.clients[span], steps=self.steps[span], eta=self.eta[span], check=check)

    def row(self, k: int) -> Block:
        """One client of the block, as a block of one."""
        return self.cut(slice(k, k + 1))


@dataclass(frozen=True)
class Orders:
    """A block's work and its coefficients: arrays over its clients, and what they have in common."""

    block: Block
    gamma: Floats
    alpha: Floats
    sigma: float = 0.0
    decay: float = 0.0
    """Weight decay, part of f_i."""
    kappa: float = 0.0
    """Of a client's own anchor step, where the round is without communication."""
    communicates: bool = True
    local: LocalOptimiser = PLAIN
    """What takes the steps."""
    rate: Floats | None = None
    """alpha_i*T_i, where a client is to work out alpha from the T_i that it comes to."""
    compress: Compressor | None = None
    """What is done to D_i before it is sent; None: nothing."""
    guard: Guard | None = None
    """What is done to the gradients of single records; None: nothing."""
    counting: Counting | None = None
    """How the one client of the block counts in whole units; None: it sends its numbers as they are."""

    def cut(self, span: slice) -> Orders:
        """Those of some clients of the block."""
        rate = None if self.rate is None else self.rate[span]
        guard = None if self.guard is None else self.guard.cut(span)
        gamma, alpha = self.gamma[span], self.alpha[span]
        return replace(self, block=self.block.cut(span), gamma=gamma, alpha=alpha, rate=rate, guard=guard)


class Private(NamedTuple):
    """What a client changes besides x while it works: rows of a block, updated in place."""

    aux: Tensor | None = None
    """Float buffers [M, K]."""
    y: Tensor | None = None
    """The second block y_i [M, W] of a two-block problem; it never leaves the client."""

    def row(self, k: int) -> Private:
        """What belongs to one client of the block, as a block of one."""
        return Private(*(None if rows is None else rows[k : k + 1] for rows in self))


class Rows(Protocol):
    """One vector per client of a block, wherever they are kept: committed ones are read, new ones staged."""

    def old(self, k: int) -> Tensor | None:
        """The committed vector of the k-th client, not to be written to; None where it has none yet."""

    def place(self, k: int) -> Tensor | None:
        """Where its new vector is best computed, good until the next call; None: anywhere."""

    def stage(self, k: int, row: Tensor) -> None:
        """Keep its new vector until the reply is counted, or thrown away."""


class Kept(NamedTuple):
    """What the clients of a block keep from round to round; None: nothing of the kind."""

    duals: Rows | None = None
    anchors: Rows | None = None
    aux: Rows | None = None
    y: Rows | None = None
    residuals: Rows | None = None

    def start(self, aux: Tensor | None, initial_y: Callable[[int], Tensor] | None, clients: Ints) -> Private:
        """Copies of what these clients will change: the committed rows stay as they are until the reply is counted."""
        private_aux = private_y = None
        if aux is not None:
            private_aux = torch.stack([aux if row is None else row for row in _old(self.aux, len(clients))])
        if self.y is not None and initial_y is not None:
            old = zip(clients.tolist(), _old(self.y, len(clients)), strict=True)
            private_y = torch.stack([initial_y(client) if row is None else row for client, row in old])
        return Private(private_aux, private_y)


def _old(rows: Rows | None, count: int) -> list[Tensor | None]:
    return [None if rows is None else rows.old(k) for k in range(count)]


class BlockTerms(Sequence[rule.Terms]):
    """Step 11's terms of each client of a block, made when asked for: a correction is a vector of the model's size."""

    def __init__(self, sent: Broadcast, orders: Orders, duals: Rows | None = None, anchors: Rows | None = None) -> None:
        self.sent, self.orders, self._duals = sent, orders, duals
        self.own_anchors = anchors is not None
        self.anchors = [sent.x0 if row is None else row for row in _old(anchors, len(self))]
        self._made: list[rule.Terms] = []

    def make(self) -> list[rule.Terms]:
        """All of them, to be kept: for solvers that need each correction more than once."""
        if not self._made:
            self._made = [self[k] for k in range(len(self))]
        return self._made

    def __len__(self) -> int:
        return len(self.orders.block.clients)

    def correction(self, k: int) -> Tensor | None:
        """h_i = lam_i - sigma*lam; None stands for zero."""
        return rule.correction(None if self._duals is None else self._duals.old(k), self.sent.lam, self.orders.sigma)

    @overload
    def __getitem__(self, k: int) -> rule.Terms: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[rule.Terms]: ...
    def __getitem__(self, k: int | slice) -> rule.Terms | Sequence[rule.Terms]:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        if self._made:
            return self._made[k]
        if not 0 <= k < len(self):
            raise IndexError(k)
        o = self.orders
        return rule.Terms(self.anchors[k], self.correction(k), float(o.block.eta[k]), float(o.gamma[k]), o.decay)
