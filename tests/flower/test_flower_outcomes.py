"""Which rounds counted is told to all clients of a masked sum alike, or two sums would differ by one client's upload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvra.flower.mask_table import Table
from fedvra.flower.protocol import Errand, Order
from flower_masked import CLIENTS, masked_grid, masked_strategy, orders_of_a_round, run, say


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def report_of(order: Order, counted: str, *outcomes: int, clients: int = CLIENTS) -> Order:
    """The order of a sum of duals, after as many rounds as there are outcomes."""
    table = Table.of_duals(np.arange(clients), np.full(clients, 1 / clients)).tensor()
    arrays = {"table": table, "outcomes": torch.tensor(outcomes, dtype=torch.uint8)}
    return replace(
        order, errand="report", number=order.number + 1000, round=len(outcomes), counted=counted, arrays=arrays
    )


def test_no_client_is_told_otherwise_than_the_others_whether_its_upload_counted(tmp_path: Path) -> None:
    """Two sums of duals, between which client 0's alone has moved, would differ by its upload; so would two of one round."""
    orders, grid = orders_of_a_round(tmp_path)
    tickets = {client: say(grid, order).ticket for client, order in orders.items()}
    lies = {
        "to one that it counted": report_of(orders[0], tickets[0], 1, 0),
        "to the others that they did not": report_of(orders[1], orders[1].counted, 1, 1),
        "the same round again": replace(orders[0], incarnation=9, counted=tickets[0]),
    }
    for name, lie in lies.items():
        answer = say(grid, lie)
        assert (answer.status, dict(answer.arrays)) == ("refused", {}), name
        assert "told otherwise than the others" in answer.reason
    for client, order in orders.items():
        assert say(grid, report_of(order, tickets[client], 1, 1)).status == "done"


def test_it_is_not_told_otherwise_later(tmp_path: Path) -> None:
    orders, grid = orders_of_a_round(tmp_path)
    ticket = say(grid, orders[0]).ticket
    assert say(grid, report_of(orders[0], ticket, 1, 1)).status == "done"
    changed, longer = (
        replace(report_of(orders[0], ticket, *told), number=5000 + k) for k, told in enumerate([(1, 0, 0), (1, 1, 0)])
    )
    assert "otherwise than before which rounds counted" in say(grid, changed).reason
    assert say(grid, longer).status == "done"


def test_a_refused_order_settles_nothing(tmp_path: Path) -> None:
    """Or one that is refused for its table would have the ledger go by something that is not written down."""
    orders, grid = orders_of_a_round(tmp_path)
    ticket = say(grid, orders[0]).ticket
    assert "leaves out clients [4]" in say(grid, report_of(orders[0], ticket, 1, 1, clients=4)).reason
    assert (
        say(grid, report_of(orders[0], orders[0].counted, 1, 0)).status == "done"
    )  # what is pending can still be dropped


def test_an_honest_server_says_it_over_void_rounds_and_a_restart(tmp_path: Path) -> None:
    grid = masked_grid(tmp_path)
    grid.fault = lambda o: "silent" if o.errand == Errand.TRAIN and o.client == 1 and o.round in (1, 3) else ""
    run(masked_strategy(tmp_path, audit_every=1), grid, 3)
    again = masked_strategy(tmp_path, audit_every=1)
    run(again, grid, 6)
    assert again.books.outcomes.tolist() == [1, 0, 1, 0, 1, 1]
    assert again.audit(grid).gap == 0.0
    told = [
        order.arrays["outcomes"].tolist() for order in grid.sent if order.errand == Errand.TRAIN and order.client == 0
    ]
    assert told == [[1, 0, 1, 0, 1][:k] for k in range(6)]
