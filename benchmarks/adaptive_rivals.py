"""Rivals of `auto` that adapt a stepsize themselves and are no rows of the library: FedExP and FedADMM-InSa.

Each plays a row of the library and does the rest between rounds, from the clients' uploads, which it sees as a rule of refusal
that refuses nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedvra as fv
from fedvra.core.cohort import Cohort, Floats
from fedvra.engines.federation import Federation
from fedvra.policies.refusals import Mask, Refusal


@dataclass(frozen=True)
class Uploads(Refusal):
    """Refuses nobody and keeps what the last round's clients sent."""

    last: list[Tensor] = field(default_factory=list)

    def outliers(self, blocks: Iterable[Tensor]) -> Mask:
        self.last[:] = list(blocks)
        return np.zeros(len(self.last[0]), dtype=bool)

    def moves(self, cohort: Cohort) -> Tensor:
        """D_i of each client [M, P], in float64. A rule sees D_i/T_i, those with the most steps first."""
        seen, order = torch.cat(self.last, dim=1), np.argsort(-cohort.steps, kind="stable")
        if len(seen) < len(order):
            raise fv.DivergedError("An upload is not finite, and no rule sees it.", cohort.round)
        moves = torch.empty_like(seen)
        moves[torch.from_numpy(order)] = seen
        return moves * torch.as_tensor(cohort.carry).unsqueeze(1)


class Rival(ABC):
    """An algorithm of one run: a row of the library, and what it does after each round."""

    def __init__(self) -> None:
        self.uploads = Uploads()

    @abstractmethod
    def row(self) -> fv.Algorithm: ...

    def options(self) -> dict[str, Any]:
        """What it replaces in an experiment."""
        return {"algorithm": self.row(), "refuse": self.uploads}

    @abstractmethod
    def after(self, federation: Federation, cohort: Cohort, before: Tensor) -> Tensor:
        """x0 after a round of the row that began at ``before``."""


class FedExP(Rival):
    """FedAvg with the server stepsize max(1, mean |D_i|^2 / (2 (|mean D_i|^2 + 0.001))) of Jhunjhunwala et al., ICLR 2023."""

    def row(self) -> fv.Algorithm:
        return fv.FedAvg()

    def after(self, federation: Federation, cohort: Cohort, before: Tensor) -> Tensor:
        step = federation.state.x0 - before
        squares = self.uploads.moves(cohort).square().sum(1).numpy()
        size = float(cohort.omega / cohort.p @ squares) / (2 * (float(step.double().square().sum()) + 1e-3))
        return before + max(1.0, size) * step


class FedADMMInSa(Rival):
    r"""FedADMM with a penalty for each client that balances its residuals, of Song, Wang, Zuazua (arXiv 2402.13989).

    After its local work from x0 to x_i client i, whose model was x_i' when it last took part (or the start), has

    .. math::
        \gamma_i \leftarrow \tau\gamma_i \text{ if } \mu\gamma_i\lVert x_i - x_i'\rVert < \lVert x_i - x_0\rVert, \quad
        \gamma_i/\tau \text{ if } \mu\lVert x_i - x_0\rVert < \gamma_i\lVert x_i - x_i'\rVert,

    with the mu = 5 and tau = 2 of the authors' code. Two departures: their criterion for when a client may stop has no part, as
    all rivals do the same work here; and the server's step is that of the library's FedADMM, where clients who are absent count
    as at x0. With theirs, where they count with their last models, digits took longer to every target. The first penalty is
    FedADMM's default.
    """

    MU, TAU, FIRST = 5.0, 2.0, 0.1

    def __init__(self) -> None:
        super().__init__()
        self.penalty: dict[int, float] = {}
        self.models: dict[int, Tensor] = {}
        self.start: Tensor | None = None

    def row(self) -> fv.Algorithm:
        return fv.FedADMM(gamma=self.penalties)

    def penalties(self, cohort: Cohort) -> Floats:
        return np.array([self.penalty.get(i, self.FIRST) for i in cohort.clients.tolist()])

    def after(self, federation: Federation, cohort: Cohort, before: Tensor) -> Tensor:
        self.start = before if self.start is None else self.start
        for i, gamma, move in zip(
            cohort.clients.tolist(), self.penalties(cohort), self.uploads.moves(cohort), strict=True
        ):
            model = before + move
            dual = gamma * float((model - self.models.get(i, self.start)).norm())
            primal = float(move.norm())
            self.penalty[i] = gamma * (self.TAU if self.MU * dual < primal else 1.0)
            self.penalty[i] /= self.TAU if self.MU * primal < dual else 1.0
            self.models[i] = model.to(before.dtype)
        return federation.state.x0


OWN: dict[str, type[Rival]] = {"fedexp": FedExP, "fedadmm-insa": FedADMMInSa}
"""By the name they have in ``adaptive_lists.RIVALS``."""
