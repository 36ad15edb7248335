"""What the server asks of its clients: orders with numbers of their own, sent, and the answers read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import Array
from flwr.serverapp import Grid

from fedvra.core import rule
from fedvra.core.block import Broadcast
from fedvra.core.cohort import Cohort, Floats, Ints
from fedvra.core.errors import require
from fedvra.flower.exchange import exchange
from fedvra.flower.protocol import Answer, Errand, Order, Status, to_array
from fedvra.flower.roster import answers, make_message
from fedvra.flower.wire import down

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

T = TypeVar("T")


def make_order(strategy: Strategy, errand: Errand, client: int) -> Order:
    """An errand for one client with a number of its own, and what is needed to settle its books."""
    strategy.number += 1
    books, restore = strategy.books, strategy.books.restores.get(client)
    return Order(
        errand=errand,
        experiment=books.experiment,
        total=strategy.roster.total,
        client=client,
        incarnation=books.incarnation,
        number=strategy.number,
        counted=books.tickets.get(client, ""),
        round=books.round,
        seed=strategy.experiment.seed,
        batch_size=strategy.experiment.batch_size or 0,
        drop_last=int(strategy.experiment.drop_last),
        frozen=strategy.frozen,
        privacy="" if strategy.experiment.privacy is None else strategy.experiment.privacy.text(),
        arrays={} if restore is None else {"restore": restore},
    )


def model_vectors(strategy: Strategy, dual: bool = False, aux: bool = False) -> dict[str, Array]:
    """x0, and lam and buffers where they are needed, as they are sent: made once for all messages."""
    books, e = strategy.books, strategy.experiment
    if e.compress_down is None:
        vectors = {"x0": books.x0, **({"lam": books.lam} if dual else {})}
    else:
        vectors = down(Broadcast(books.x0, books.lam), e.compress_down, e.seed, books.round, dual)
    if aux and books.aux is not None:
        vectors["aux"] = books.aux
    return {name: to_array(vector) for name, vector in vectors.items()}


def down_text(strategy: Strategy) -> str:
    """What is done to them on the way."""
    how = strategy.experiment.compress_down
    return "" if how is None else how.text()


def train_orders(strategy: Strategy, cohort: Cohort, row: rule.Coefficients) -> list[Order]:
    """The work of a round, for the clients of the cohort that are connected and have their state."""
    e = strategy.experiment
    vectors = model_vectors(strategy, dual=bool(row.sigma), aux=True)
    orders = []
    for k, client in enumerate(cohort.clients.tolist()):
        if client in strategy.lost | strategy.leaving | strategy.spent or client not in strategy.roster.nodes:
            continue
        order = make_order(strategy, Errand.TRAIN, client)
        orders.append(
            replace(
                order,
                steps=int(cohort.steps[k]),
                eta=float(cohort.eta[k]),
                gamma=float(row.gamma[k]),
                alpha=float(row.alpha[k]),
                sigma=float(row.sigma),
                local=e.local.text(),
                compress="" if e.compress is None else e.compress.text(),
                compress_down=down_text(strategy),
                residual=int(e.compress is not None and not row.alpha.any()),
                rate=0.0 if row.rate is None else float(row.rate[k]),
                shared=vectors,
            )
        )
    return orders


def ask(strategy: Strategy, grid: Grid, orders: list[Order], read: Callable[[Answer | str], T]) -> list[T]:
    """Send these orders to their clients; what ``read`` makes of each one's answer, as it comes, or of why there is none."""
    nodes = strategy.roster.nodes
    sent = [(make_message(o, nodes[o.client], strategy.timeout), o.client) for o in orders if o.client in nodes]
    replies = exchange(grid, [message for message, _ in sent], strategy.timeout)
    found = {client: read(answer) for client, answer in answers(sent, replies)}
    return [found[order.client] if order.client in found else read("is not connected") for order in orders]


def losses(strategy: Strategy, grid: Grid) -> Callable[[Ints], Floats]:
    """f_i(x0), asked of the clients; whoever does not answer, or not with a number, comes last."""

    def asked(clients: Ints) -> Floats:
        require(
            strategy.secure is None, "secure: the sampler asks for losses of single clients, and the server sees none."
        )
        x0, how = model_vectors(strategy), down_text(strategy)
        orders = [
            replace(make_order(strategy, Errand.LOSS, int(i)), arrays={}, shared=x0, compress_down=how) for i in clients
        ]
        return np.array(ask(strategy, grid, orders, _loss))

    return asked


def _loss(answer: Answer | str) -> float:
    if isinstance(answer, str) or answer.status != Status.DONE or not np.isfinite(answer.loss):
        return -np.inf
    return answer.loss
