"""Steps 16-20 over the uploads that count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedvra import rule
from fedvra.cohort import Cohort, mean_over
from fedvra.errors import DivergedError
from fedvra.flower.books import Books
from fedvra.flower.uploads import Upload
from fedvra.memory import remember
from fedvra.planning import Experiment, subset


@torch.no_grad()
def count(
    books: Books,
    experiment: Experiment,
    cohort: Cohort,
    row: rule.Coefficients,
    uploads: Mapping[int, Upload],
    shadow: bool,
) -> float:
    """Enter these uploads, by client, into the books: new x0, lam and tickets. They are unchanged if it cannot be done.

    Returns their mean training loss.
    """
    counted = np.array([client in uploads for client in cohort.clients.tolist()])
    part, alpha = subset(cohort, counted), row.alpha[counted]
    made = [uploads[client] for client in part.clients.tolist()]
    moves = [upload.move for upload in made]
    model_sum = _weighted_sum(books.x0, part.omega * row.w[counted], moves)
    dual_sum = _weighted_sum(books.x0, part.omega * alpha, moves)
    totals = rule.Totals(float(part.omega.sum()), float(part.omega @ part.steps))
    lam = rule.server_dual(books.lam, dual_sum, row.sigma, totals.omega)  # step 19
    project = experiment.problem.project
    x0 = rule.server_model(books.x0, lam, model_sum, row.scale(totals), row.kappa, project)  # step 20
    if not bool(torch.isfinite(x0).all() and torch.isfinite(lam).all()):
        raise DivergedError(
            f"{experiment.algorithm.label} diverged in round {books.round + 1}, x0 is no longer finite: lower the step "
            "sizes; the books are as they were before the round.",
            books.round + 1,
        )
    if shadow:
        for client, a, move in zip(part.clients.tolist(), alpha.tolist(), moves, strict=True):
            h = rule.correction(books.shadow.get(client), books.lam, row.sigma)
            books.shadow[client] = rule.dual_step(h, move, a)  # step 14, as the client took it
    if books.aux is not None:
        buffers = [upload.aux for upload in made if upload.aux is not None]
        books.aux = _weighted_sum(books.aux, part.omega / totals.omega, buffers)
    books.x0, books.lam = x0, lam
    loss = mean_over(part, np.array([upload.loss for upload in made]))
    books.memory = remember(experiment.algorithm, books.memory, cohort, model_sum, lam, loss)
    for client, upload in zip(part.clients.tolist(), made, strict=True):
        books.tickets[client] = upload.ticket
        books.restores.pop(client, None)
    return loss


def _weighted_sum(like: Tensor, weights: np.ndarray[tuple[int], np.dtype[np.float64]], rows: list[Tensor]) -> Tensor:
    """One row at a time: the uploads are there, a matrix of them need not be."""
    total = torch.zeros_like(like)
    for k, one in enumerate(rows):
        rule.add_weighted_(total, weights[k : k + 1], one.unsqueeze(0))
    return total
