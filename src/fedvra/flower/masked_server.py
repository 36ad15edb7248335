"""The server's side of masked sums: one order for all of a cohort, and one sum of what they send, or none.

Who is missing, late or refused makes the round void: what the others sent stays noise, their duals are rolled back by their
tickets, and the next round has a number and masks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Message
from flwr.supercore import log
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import Broadcast
from fedvra.core.cohort import Cohort
from fedvra.core.errors import UsageError, require
from fedvra.core.loops import Loop
from fedvra.core.step import Sums, forms_mean, whole_server_dual
from fedvra.core.whole import WIDE, Ring, Words, to_real
from fedvra.flower.client_ledger import check_ticket
from fedvra.flower.count_uploads import Outcome, take_step
from fedvra.flower.errands import train_orders
from fedvra.flower.mask_keys import RosterError
from fedvra.flower.mask_scheme import FINE, FOREMOST, SHRINK, Scheme
from fedvra.flower.mask_table import MaskedSum, Table
from fedvra.flower.protocol import Answer, BadMessageError, Order, Status, printable, read_array, to_array
from fedvra.flower.roster import answers
from fedvra.flower.uploads import RefusedUploadError
from fedvra.samplers.power_of_choice import PowerOfChoice

if TYPE_CHECKING:
    from fedvra.engines.experiment import Experiment
    from fedvra.flower.server_books import Books
    from fedvra.flower.strategy import Strategy


def check_secure(
    secure: MaskedSum | None,
    experiment: Experiment,
    clients: int,
    shadow: bool,
    max_norm: float | None,
    evaluate_every: int,
) -> MaskedSum | None:
    """Give it back; refuse what masks make impossible, each in a sentence, before anything is written."""
    if secure is None:
        return None
    require(isinstance(secure, MaskedSum), f"secure must be fedvra.flower.MaskedSum(...) or None, got {secure!r}.")
    require(clients >= secure.least, f"secure: {clients} clients are fewer than the least of a sum, {secure.least}.")
    e = experiment
    refused: dict[str, tuple[object, str]] = {
        "refuse": (e.refuse, "looks at single uploads"),
        "compress": (e.compress, "makes vectors that do not add up under masks; bits= makes uploads small"),
        "local=Loop": (isinstance(e.local, Loop), "needs to hear what each client did"),
        "shadow": (shadow, "follows single duals"),
        "max_norm": (max_norm is not None, "looks at single uploads"),
        "evaluate_every": (evaluate_every, "asks for results of single clients"),
        "PowerOfChoice": (isinstance(e.sampler, PowerOfChoice), "asks for losses of single clients"),
    }
    for name, (given, why) in refused.items():
        require(not given, f"secure: {name} {why}, and the server sees none: leave it out.")
    return secure


# -- a round ---------------------------------------------------------------------------------------------------------------


def masked_orders(strategy: Strategy, cohort: Cohort, row: rule.Coefficients) -> list[Order]:
    """The work of a round, for all of the cohort or for nobody: with one missing there would be no sum."""
    secure = strategy.secure
    assert secure is not None
    require(bool((cohort.omega > 0).all()), "secure: a client without weight has no part in a sum: give all a weight.")
    require(
        not forms_mean(strategy.experiment.deployment, row),
        "secure: the mean of the clients' models would take one more sum where clients' weights differ: say deploy='x0'.",
    )
    if _why_nobody(strategy, cohort, row):
        return []
    scheme, table = _scheme(strategy, cohort, row)
    return [
        replace(
            order,
            bits=secure.bits,
            grains=scheme.grains,
            unit=scheme.unit,
            second_unit=scheme.second_unit,
            reach=scheme.reach,
            residual=int(not row.alpha.any()),
        )
        for order in alike(train_orders(strategy, cohort, row), table, strategy.books)
    ]


def _scheme(strategy: Strategy, cohort: Cohort, row: rule.Coefficients) -> tuple[Scheme, Table]:
    """How the uploads of a round are counted, and what its clients are told of each other."""
    assert strategy.secure is not None
    scheme = Scheme.of(strategy.secure, cohort, row, strategy.books.reach)
    columns = (cohort.omega, scheme.first, scheme.second, cohort.steps, cohort.eta, row.gamma)
    return scheme, Table(cohort.clients, *columns)


def _why_nobody(strategy: Strategy, cohort: Cohort, row: rule.Coefficients | None) -> dict[int, str]:
    """Why nobody is asked, by client: somebody is not to be had, or the sum would tell too much of single ones."""
    secure, clients = strategy.secure, cohort.clients.tolist()
    assert secure is not None
    said = {"has lost its state": strategy.lost, "has spent its privacy budget": strategy.spent}
    said |= {"is leaving": strategy.leaving}
    away = {i: "is not connected" for i in clients if i not in strategy.roster.nodes}
    away |= {i: why for why, who in said.items() for i in clients if i in who}
    if away or row is None:
        return away
    if len(cohort) < secure.least:
        return {i: f"is one of {len(cohort)}, and {secure.least} is the least" for i in clients}
    try:
        _scheme(strategy, cohort, row)[1].check(clients, secure.least)
    except RosterError as refusal:
        return dict.fromkeys(clients, f"is not asked: {refusal}")
    return {}


def alike(orders: Sequence[Order], table: Table, books: Books) -> list[Order]:
    """Orders of one sum: all bear the number of the last, for masks go by it."""
    number = max(order.number for order in orders)
    told = {"table": to_array(table.tensor()), "outcomes": to_array(books.outcomes)}
    return [replace(o, number=number, shared={**o.shared, **told}) for o in orders]


@dataclass(frozen=True)
class Masked:
    """What one client sent: tickets are for all to see, the rest is noise by itself."""

    ticket: str
    move: Words
    few: Words
    second: Words | None = None

    def plus(self, other: Masked, ring: Ring) -> Masked:
        """The sum of two: exact, and so the same in whatever order they come."""
        second = None if self.second is None or other.second is None else ring.add(self.second, other.second)
        return Masked("", ring.add(self.move, other.move), Ring(WIDE).add(self.few, other.few), second)


def read_masked(answer: Answer, client: int, scheme: Scheme, width: int, few: int) -> Masked:
    """What a client sent, once it is known to be of the right form; raises RefusedUploadError."""
    if answer.client != client:
        raise RefusedUploadError(f"it says that it comes from client {answer.client}")
    try:
        check_ticket(answer.ticket)
    except UsageError as error:
        raise RefusedUploadError(str(error)) from error
    if not answer.ticket:
        raise RefusedUploadError("it carries no ticket")
    ring = scheme.ring
    second = read_words(answer, "second", ring, width) if scheme.ratio is None else None
    return Masked(
        answer.ticket, read_words(answer, "move", ring, width), read_words(answer, "few", Ring(WIDE), few), second
    )


def read_words(answer: Answer, name: str, ring: Ring, count: int) -> Words:
    array = answer.arrays.get(name)
    if array is None:
        raise RefusedUploadError(f"{name}: missing")
    if len(array.data) > ring.nbytes(count) + 256:
        raise RefusedUploadError(f"{name} takes {len(array.data)} bytes, expected {ring.nbytes(count)}")
    try:
        found = read_array(array)
    except BadMessageError as error:
        raise RefusedUploadError(f"{name}: {error}") from error
    if found.dtype != torch.uint8 or found.numel() != ring.nbytes(count):
        raise RefusedUploadError(
            f"{name}: {found.numel()} numbers of {found.dtype}, expected {ring.nbytes(count)} bytes"
        )
    return ring.decode(found.numpy(), count)


def count_masked(
    strategy: Strategy,
    cohort: Cohort,
    row: rule.Coefficients | None,
    sent: Sequence[tuple[Message, int]],
    replies: Iterable[Message],
) -> Outcome:
    """Enter the sum of a cohort's uploads into the books, if all are there."""
    books, e = strategy.books, strategy.experiment
    if row is None or not sent:
        return _void(strategy, _why_nobody(strategy, cohort, row))
    why = dict[int, str]()
    scheme, total, tickets = _scheme(strategy, cohort, row)[0], None, dict[int, str]()
    silent, epsilon = False, 0.0
    width, few_numbers = len(books.x0), FOREMOST + (0 if books.aux is None else len(books.aux))
    for client, answer in answers(sent, replies):
        try:
            if isinstance(answer, str) or answer.status != Status.DONE:
                why[client] = _unable(strategy, client, answer)
                continue
            found = read_masked(answer, client, scheme, width, few_numbers)
            total = found if total is None else total.plus(found, scheme.ring)
            tickets[client] = found.ticket
            silent, epsilon = silent or bool(answer.silent), max(epsilon, answer.epsilon)
            if 1 <= answer.samples <= strategy.max_samples:
                strategy.said[client] = answer.samples
        except RefusedUploadError as refusal:
            why[client] = f"is refused: {refusal}"
    up, table = len(tickets) * scheme.upload_bytes(width, few_numbers), scheme.table_bytes + len(books.outcomes)
    if why or total is None:
        return _void(strategy, why)._replace(up=up, table=table)  # what the others sent stays noise
    assert len(tickets) == len(cohort)  # the masks of fewer would not cancel
    told = Broadcast(books.x0, books.lam, books.aux).rounded(e.compress_down, e.seed, books.round)
    seen = unmask(books, told, cohort, row, scheme, total)
    sums = seen.sums._replace(loss=math.nan) if silent else seen.sums
    take_step(books, e, cohort, np.ones(len(cohort), dtype=bool), row, sums)
    books.whole, books.reach = seen.whole, seen.reach
    books.tickets.update(tickets)
    if seen.clipped:
        log(INFO, "round %s: %.2g of the numbers were clipped: the rest comes later", books.round + 1, seen.clipped)
    told_loss = None if silent else sums.loss
    return Outcome(sorted(tickets), {}, [], told_loss, epsilon, up=up, table=table, clipped=seen.clipped)


def _unable(strategy: Strategy, client: int, answer: Answer | str) -> str:
    """Why a client sent nothing; what is to be remembered of it."""
    if isinstance(answer, str):
        return answer
    strategy.lost |= {client} if answer.status == Status.LOST else set()
    strategy.leaving |= {client} if answer.leaving else set()
    if answer.status == Status.SPENT:  # it is not asked again: the others would pay for rounds that are void
        strategy.spent.add(client)
        return f"takes no part any more: {printable(answer.reason)}"
    return f"did not do the work: {printable(answer.reason)}"


def _void(strategy: Strategy, why: dict[int, str]) -> Outcome:
    for client, reason in why.items():
        log(WARNING, "round %s: client %s %s", strategy.books.round + 1, client, reason)
    return Outcome([], why, [], None, 0.0)


@dataclass(frozen=True)
class Unmasked:
    """The sums over a cohort, of which all have answered."""

    sums: Sums
    whole: Tensor | None
    """lam in grains; None where there are no duals."""
    reach: float
    """How far moves went in any coordinate, on average over clients."""
    clipped: float
    """Which share of an upload's numbers was, on average over clients."""


def unmask(
    books: Books, sent: Broadcast, cohort: Cohort, row: rule.Coefficients, scheme: Scheme, total: Masked
) -> Unmasked:
    """Steps 16 to 19: what the uploads come to, and lam."""
    x0, kind = books.x0, books.x0.dtype
    first = scheme.ring.signed(total.move)
    few = to_real(Ring(WIDE).signed(total.few), torch.float64, FINE)
    if total.second is not None:
        model = to_real(scheme.ring.signed(total.second), kind, scheme.second_unit)
    else:
        assert scheme.ratio is not None
        model = to_real(first, kind, scheme.unit * scheme.ratio)
    whole, lam = books.whole, books.lam
    if scheme.grains or row.sigma or whole is not None:
        held = torch.zeros(len(x0), dtype=torch.int64) if whole is None else whole
        whole = whole_server_dual(held, sent.lam, cohort.omega, row.sigma, scheme.grains, first)
        lam = to_real(whole, kind)
    loss = float(few[0]) / rule.divisor(float(cohort.omega.sum()))
    aux = None if books.aux is None else few[FOREMOST:].to(books.aux.dtype)
    reach = scheme.reach * max(float(few[1]) / len(cohort), SHRINK)
    dual = to_real(first, kind, scheme.unit) if scheme.grains else torch.zeros_like(model)
    return Unmasked(Sums(model, dual, aux, loss, lam=lam), whole, reach, float(few[2]) / len(cohort))
