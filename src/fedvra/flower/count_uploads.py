"""Steps 16-20: which uploads count, and what they make of x0 and lam."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from flwr.app import Message
from flwr.supercore import log
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import Block, Broadcast, Kept, Orders, Private
from fedvra.core.cohort import Cohort, mean_over
from fedvra.core.errors import DivergedError
from fedvra.core.loops import Done, Loop
from fedvra.core.step import Server, Shares, Sums, WholeMoves, client_round, forms_mean, server_round
from fedvra.engines.experiment import Experiment, Plan, subset
from fedvra.flower.protocol import Answer, Status, printable
from fedvra.flower.roster import answers
from fedvra.flower.server_books import Books
from fedvra.flower.spool import Spool, columns
from fedvra.flower.uploads import RefusedUploadError, Upload, check_work, checked_upload
from fedvra.policies.refusals import Refusal, refused_in_blocks, width_of_blocks
from fedvra.problems.base import project

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy


class Outcome(NamedTuple):
    """What became of a round."""

    counted: list[int]
    why: dict[int, str]
    """Why the others do not count."""
    refused: list[int]
    """Those whom the rule of refusal refused."""
    loss: float | None
    """The mean training loss of those who count; None where nobody does, or tells."""
    epsilon: float
    """The greatest that any of them has come to; 0 where none is counted."""
    up: int | None = None
    """Bytes of the uploads that came, where these are not plain ones."""
    table: int = 0
    """Bytes that went to each of those asked, beside the model."""
    clipped: float = 0.0
    """Which share of an upload's numbers did not fit into a masked sum, on average."""


def count_uploads(
    strategy: Strategy,
    cohort: Cohort,
    row: rule.Coefficients | None,
    sent: Sequence[tuple[Message, int]],
    replies: Iterable[Message],
) -> Outcome:
    """Count what can be counted of a round's replies, and enter it into the books."""
    loss = None
    with Spool(strategy.folder) as spool:
        uploads, why, refused = judge(strategy, cohort, sent, replies, spool)
        if why and strategy.experiment.algorithm.everyone_takes_part:
            uploads = {}  # the method is not defined for less: the round is void
        if uploads and row is not None:
            loss = count(strategy.books, strategy.experiment, cohort, row, uploads, strategy.shadow)
    epsilon = max((upload.epsilon for upload in uploads.values()), default=0.0)
    return Outcome(sorted(uploads), why, refused, None if loss is None or math.isnan(loss) else loss, epsilon)


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

    Returns their mean training loss; NaN where nobody tells.
    """
    cohort, row = _settled(books, experiment, cohort, row, uploads)
    counted = np.array([client in uploads for client in cohort.clients.tolist()])
    part = subset(cohort, counted)
    made = [uploads[client] for client in part.clients.tolist()]
    losses = np.array([upload.loss for upload in made])
    told = np.isfinite(losses)
    loss = mean_over(subset(part, told), losses[told]) if told.any() else np.nan
    model, dual = torch.zeros_like(books.x0), torch.zeros_like(books.x0)
    mean = torch.zeros_like(books.x0) if forms_mean(experiment.deployment, row) else None
    aux = None if books.aux is None else torch.zeros_like(books.aux)
    duals: dict[int, Tensor] = {}
    sent = Broadcast(books.x0, books.lam, books.aux).rounded(experiment.compress_down, experiment.seed, books.round)
    for k, (place, upload) in enumerate(zip(np.flatnonzero(counted).tolist(), made, strict=True)):
        one = slice(place, place + 1)
        omega = cohort.omega[one]
        shares = Shares(model, omega * row.w[one], dual, omega * row.alpha[one], aux, omega, mean, omega)
        shadow_row = _ShadowRow(int(part.clients[k]), books.shadow, duals) if shadow else None
        _repeat(sent, experiment, cohort, row, one, upload, Kept(duals=shadow_row), shares)
    told = sent.lam if experiment.compress_down is not None else None
    take_step(books, experiment, cohort, counted, row, Sums(model, dual, aux, loss, told, mean))
    books.shadow.update(duals)
    for client, upload in zip(part.clients.tolist(), made, strict=True):
        books.tickets[client] = upload.ticket
        books.restores.pop(client, None)
    return loss


@torch.no_grad()
def take_step(
    books: Books,
    experiment: Experiment,
    cohort: Cohort,
    counted: NDArray[np.bool_],
    row: rule.Coefficients,
    sums: Sums,
) -> None:
    """Steps 19 and 20 with the sums of those who count: new x0, lam, buffers and memory; or none of them, where x0 diverged."""
    server = Server(books.x0, books.lam, books.aux, books.memory, books.deployed)
    projected = partial(project, experiment.problem)
    after = server_round(server, cohort, counted, row, sums, experiment.algorithm, projected, experiment.deployment)
    if not bool(torch.isfinite(after.x0).all() and torch.isfinite(after.lam).all()):
        raise DivergedError(
            f"{experiment.algorithm.label} diverged in round {books.round + 1}, x0 is no longer finite: lower the step "
            "sizes; the books are as they were before the round.",
            books.round + 1,
        )
    books.x0, books.lam, books.aux, books.memory, books.deployed = after


def _settled(
    books: Books, experiment: Experiment, cohort: Cohort, row: rule.Coefficients, uploads: Mapping[int, Upload]
) -> tuple[Cohort, rule.Coefficients]:
    """Cohort and coefficients by what loops of the clients' own did; those who do not count, by what they were to do."""
    if not isinstance(experiment.local, Loop):
        return cohort, row
    steps, carried = cohort.steps.copy(), cohort.carry
    for k, client in enumerate(cohort.clients.tolist()):
        if client in uploads:
            steps[k], carried[k] = uploads[client].steps, uploads[client].carried or np.nan
    return Plan(experiment, books.samples, books.members).settled(cohort, row, Done(steps, carried), books.counts)


def _repeat(
    sent: Broadcast,
    experiment: Experiment,
    cohort: Cohort,
    row: rule.Coefficients,
    one: slice,
    upload: Upload,
    kept: Kept,
    shares: Shares,
) -> None:
    """A client's round as the server sees it: with what was uploaded in place of the local steps."""
    block = Block(cohort.round, experiment.seed, cohort.clients[one], cohort.steps[one], cohort.eta[one])
    orders = Orders(block, row.gamma[one], row.alpha[one], row.sigma, experiment.problem.decay)
    private = Private(None if upload.aux is None else upload.aux.read().unsqueeze(0))
    losses = torch.tensor([upload.loss], dtype=torch.float64)
    client_round(
        lambda terms, private, block: WholeMoves(terms, upload.move.read().unsqueeze(0), losses),
        sent,
        orders,
        kept,
        private,
        shares,
    )


class _ShadowRow:
    """The server's copy of one client's dual."""

    def __init__(self, client: int, shadow: Mapping[int, Tensor], new: dict[int, Tensor]) -> None:
        self._client, self._shadow, self._new = client, shadow, new

    def old(self, k: int) -> Tensor | None:
        return self._shadow.get(self._client)

    def place(self, k: int) -> Tensor | None:
        return None

    def stage(self, k: int, row: Tensor) -> None:
        self._new[self._client] = row


def judge(
    strategy: Strategy, cohort: Cohort, sent: Sequence[tuple[Message, int]], replies: Iterable[Message], spool: Spool
) -> tuple[dict[int, Upload], dict[int, str], list[int]]:
    """The uploads to be counted, why there is none from the others, and which of them the rule of refusal refused.

    They are looked at as they come and wait in the spool.
    """
    uploads: dict[int, Upload] = {}
    why = {int(c): _absence(strategy, int(c)) for c in cohort.clients}
    for client, answer in answers(sent, replies):
        found = _read(strategy, cohort, client, answer, spool)
        if isinstance(found, Upload):
            uploads[client] = found
            del why[client]
        else:
            why[client] = found
    outliers = _outliers(strategy.experiment.refuse, cohort, uploads)
    for client in outliers:
        del uploads[client]
        why[client] = f"is refused by {strategy.experiment.refuse!r}"
    for client, reason in why.items():
        log(WARNING, "round %s: client %s %s", strategy.books.round + 1, client, reason)
    return uploads, why, outliers


def _absence(strategy: Strategy, client: int) -> str:
    """Why a client was not asked."""
    if client in strategy.spent:
        return "has spent its privacy budget"
    if client in strategy.leaving:
        return "is leaving"
    return "awaits repair" if client in strategy.lost else "is not connected"


def _read(strategy: Strategy, cohort: Cohort, client: int, answer: Answer | str, spool: Spool) -> Upload | str:
    """The upload in an answer, or why there is none."""
    if isinstance(answer, str):
        return answer
    if answer.status == Status.LOST:
        strategy.lost.add(client)
        return f"has lost its state and will be repaired: {printable(answer.reason)}"
    if answer.status == Status.SPENT:
        strategy.spent.add(client)
        return f"takes no part any more: {printable(answer.reason)}"
    if answer.status != Status.DONE:
        strategy.leaving |= {client} if answer.leaving else set()
        return f"did not do the work: {printable(answer.reason)}"
    try:
        books, compress = strategy.books, strategy.experiment.compress
        upload = checked_upload(answer, client, books.x0, books.aux, strategy.max_norm, spool, compress)
        if isinstance(strategy.experiment.local, Loop):
            k = cohort.clients.tolist().index(client)
            check_work(upload, int(cohort.steps[k]), float(cohort.carry[k]))
        if 1 <= answer.samples <= strategy.max_samples:
            strategy.said[client] = answer.samples
        return upload
    except RefusedUploadError as refusal:
        return f"is refused: {refusal}"


def _outliers(refuse: Refusal | None, cohort: Cohort, uploads: Mapping[int, Upload]) -> list[int]:
    """The clients whose uploads a rule refuses."""
    if refuse is None or not uploads:
        return []
    sent = np.isin(cohort.clients, list(uploads))
    clients, work = cohort.clients[sent].tolist(), cohort.carry[sent]
    rows = [uploads[client].move for client in clients]
    mask = refused_in_blocks(refuse, partial(columns, rows, width_of_blocks(len(rows))), work)
    return [client for client, out in zip(clients, mask.tolist(), strict=True) if out]
