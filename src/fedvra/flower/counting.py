"""Steps 16-20: which uploads count, and what they make of x0 and lam."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from fedvra import rule
from fedvra.cohort import Cohort, mean_over
from fedvra.errors import DivergedError
from fedvra.flower.books import Books
from fedvra.flower.protocol import Answer, Status, printable
from fedvra.flower.roster import match, read_reply
from fedvra.flower.uploads import RefusedUploadError, Upload, checked_upload
from fedvra.memory import remember
from fedvra.planning import Experiment, subset
from fedvra.refusals import Refusal, refused

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy


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


def judge(
    strategy: Strategy, cohort: Cohort, sent: Sequence[tuple[Message, int]], replies: Iterable[Message]
) -> tuple[dict[int, Upload], dict[int, str], list[int]]:
    """The uploads to be counted, why there is none from the others, and which of them the rule of refusal refused."""
    uploads: dict[int, Upload] = {}
    why = {int(c): "awaits repair" if c in strategy.lost else "is not connected" for c in cohort.clients}
    for (_, client), reply in zip(sent, match([message for message, _ in sent], replies), strict=True):
        found = _read(strategy, client, read_reply(reply))
        if isinstance(found, Upload):
            uploads[client] = found
            del why[client]
        else:
            why[client] = found
    outliers = _outliers(strategy.experiment.refuse, cohort, uploads)
    for client in outliers:
        del uploads[client]
        why[client] = f"is refused by {strategy.experiment.refuse!r}"
    return uploads, why, outliers


def _read(strategy: Strategy, client: int, answer: Answer | str) -> Upload | str:
    """The upload in an answer, or why there is none."""
    if isinstance(answer, str):
        return answer
    if answer.status == Status.LOST:
        strategy.lost.add(client)
        return f"has lost its state and will be repaired: {printable(answer.reason)}"
    if answer.status != Status.DONE:
        return f"did not do the work: {printable(answer.reason)}"
    try:
        return checked_upload(answer, client, strategy.books.x0, strategy.books.aux, strategy.max_norm)
    except RefusedUploadError as refusal:
        return f"is refused: {refusal}"


def _outliers(refuse: Refusal | None, cohort: Cohort, uploads: Mapping[int, Upload]) -> list[int]:
    """The clients whose uploads a rule refuses."""
    if refuse is None or not uploads:
        return []
    sent = np.isin(cohort.clients, list(uploads))
    clients, work = cohort.clients[sent].tolist(), (cohort.eta * cohort.steps)[sent]
    mask = refused(refuse, torch.stack([uploads[client].move for client in clients]), work)
    return [client for client, out in zip(clients, mask.tolist(), strict=True) if out]


def _weighted_sum(like: Tensor, weights: np.ndarray[tuple[int], np.dtype[np.float64]], rows: list[Tensor]) -> Tensor:
    """One row at a time: the uploads are there, a matrix of them need not be."""
    total = torch.zeros_like(like)
    for k, one in enumerate(rows):
        rule.add_weighted_(total, weights[k : k + 1], one.unsqueeze(0))
    return total
