"""Messages meant to end the server, or to lose what others sent: none does."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedvra as fv
from fedvra.flower import Ledger, Strategy
from fedvra.flower.protocol import Answer, BadMessageError, Errand, Order, pack, read_array, to_array, unpack_answer
from fedvra.flower.spool import Spool
from fedvra.flower.uploads import RefusedUploadError, checked_upload
from flower_grid import FakeGrid, make_nodes, quadratic
from flower_hostile import HEADERS, MUTATIONS, TICKET, as_order, make_strategy, mutate, with_header


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_the_one_expected_is_not_read(name: str) -> None:
    with pytest.raises(BadMessageError, match="not a vector of numbers"):
        read_array(with_header(HEADERS[name]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 100003])
def test_every_vector_numpy_writes_is_read(dtype: Any, count: int) -> None:
    values = (np.arange(count) % 100).astype(dtype)
    np.testing.assert_array_equal(read_array(Array(values)).numpy(), values)


def test_a_vector_far_too_long_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    answer = Answer("done", 0, ticket=TICKET, arrays={"move": Array(np.zeros(100_000))})
    with Spool(tmp_path) as spool, pytest.raises(RefusedUploadError, match="bytes, expected 288 at most"):
        checked_upload(answer, 0, torch.zeros(4), None, None, spool)


def introduce(folder: Path, **changes: Any) -> tuple[Strategy, FakeGrid]:
    """A federation in which node 101 introduces itself in an unusual way."""
    grid = FakeGrid(make_nodes(quadratic(), folder))

    def tamper(order: Order, reply: Message) -> Message:
        if order.errand != Errand.HELLO or reply.metadata.src_node_id != 101:
            return reply
        return Message(pack(replace(unpack_answer(reply.content), **changes)), reply_to=as_order(order, reply))

    grid.tamper = tamper
    return make_strategy(folder), grid


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "a client there is not": ({"client": 10**6}, r"\(client 1000000\) is refused: there are clients 0 to 2"),
    "a negative client": ({"client": -1}, "there are clients 0 to 2"),
    "one too many": ({"client": 3}, "there are clients 0 to 2"),
    "all the weight": ({"samples": 10**15}, "it holds 1000000000000000 samples"),
    "no samples": ({"samples": 0}, "it holds 0 samples"),
    "less than none": ({"samples": -(10**18)}, "it holds -1"),
    "refused without a reason": ({"status": "refused", "client": 0}, "is refused: no reason given"),
    "lines of its own": (
        {"status": "refused", "reason": "a\n[ROUND 9]\x1b[2J\u202e"},
        r"a\\n\[ROUND 9\]\\x1b\[2J\\u202e",
    ),
}


@pytest.mark.parametrize("name", HELLOS)
def test_an_introduction_that_cannot_be_is_refused(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes, reason = HELLOS[name]
    strategy, grid = introduce(tmp_path, **changes)
    with pytest.raises(fv.FedvraError, match=f"2 of 3 clients are connected .*{reason}"):
        strategy.start(grid, num_rounds=1, timeout=1)
    assert strategy.books.samples.tolist() == [1, 0, 1]
    assert not any(set(record.getMessage()) & {"\n", "\x1b"} for record in caplog.records)


def test_a_reply_that_breaks_flowers_parser_takes_no_other_along(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: "garbled" if o.errand == Errand.TRAIN and o.client == 1 and o.round == 1 else ""
    strategy = make_strategy(tmp_path)
    strategy.start(grid, num_rounds=4, timeout=1)
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert "cannot read (KeyError)" in strategy.records[1]["lost"][1]
    assert strategy.audit(grid).relative < 1e-12


def test_a_reply_that_never_comes_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Announced, and its contents not sent until all is over: Flower would wait for two hours."""
    monkeypatch.setattr("fedvra.flower.exchange.GRACE_SECONDS", 2.0)
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: "stuck" if o.errand == Errand.TRAIN and o.client == 0 and o.round == 1 else ""
    strategy = make_strategy(tmp_path)
    strategy.timeout = 60.0
    strategy.open(grid)
    for limit in (
        60.0,
        6.0,
        60.0,
    ):  # the round of the stuck one lasts as long as it may, the others until all are there
        strategy.timeout = limit
        strategy.play(grid)
    assert not grid.waited
    grid.release.set()
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [1, 2], [0, 1, 2]]
    assert strategy.audit(grid).relative < 1e-12


@settings(max_examples=2000, derandomize=True, deadline=None)
@given(mutations=st.lists(MUTATIONS, min_size=1, max_size=3))
def test_a_mutated_answer_is_read_or_refused_and_nothing_else(mutations: list[tuple[str, str, Any]]) -> None:
    move = torch.tensor([0.1, -0.2, 0.3, 0.4], dtype=torch.float64)
    content = pack(Answer("done", 1, ticket=TICKET, loss=0.5, arrays={"move": to_array(move)}))
    try:
        for mutation in mutations:
            content = mutate(content, *mutation)
    except (KeyError, TypeError, ValueError):
        return  # Flower itself does not let such records be made
    x0, reason = torch.zeros(4, dtype=torch.float64), ""
    with Spool(Path(tempfile.gettempdir())) as spool:
        try:
            move = checked_upload(unpack_answer(content), 1, x0, None, None, spool).move.read()
        except (BadMessageError, RefusedUploadError) as error:
            reason = str(error)
    assert move.shape == (4,)
    assert float(move.norm()) <= 1e9
    assert reason.isprintable()


@pytest.mark.slow
@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mutations=st.lists(MUTATIONS, min_size=20, max_size=20))
def test_no_message_ends_the_server_and_nothing_is_lost(
    mutations: list[tuple[str, str, Any]], tmp_path_factory: Any
) -> None:
    """Client 1 sends what it likes, in thousands of messages all told; lam stays the sum of what was counted, to the bit."""
    folder = tmp_path_factory.mktemp("mutated")
    grid = FakeGrid(make_nodes(quadratic(), folder))
    strategy = make_strategy(folder, shadow=True, audit_every=2)
    strategy.start(grid, num_rounds=1, timeout=0.001)
    left = [m for m in mutations if m != ("scalar", "leaving", 1)]  # that is a farewell, and client 1 may leave

    def tamper(order: Order, reply: Message) -> Message:
        if reply.metadata.src_node_id != 101 or not left or reply.has_error():
            return reply
        try:
            content = mutate(reply.content, *left.pop())
        except (KeyError, TypeError, ValueError):
            return reply
        return Message(content, reply_to=as_order(order, reply))

    grid.tamper = tamper
    while left and strategy.books.round < 12:
        if strategy.books.round % 3 == 0:  # introductions as well
            strategy.roster._known.clear()
        strategy.play(grid)
    grid.tamper = lambda order, reply: reply
    strategy.roster._known.clear()
    for _ in range(3):
        strategy.play(grid)
    books, omega = strategy.books, strategy.plan.omega
    total = sum((omega[i] * books.shadow[i] for i in range(3)), torch.zeros(4, dtype=torch.float64))
    scale = max(float(lam_i.norm()) for lam_i in books.shadow.values())
    assert float((books.lam - total).norm()) <= 1e-9 * max(1.0, scale)
    assert bool(torch.isfinite(books.x0).all())
    for honest in (0, 2):
        rows = Ledger.of(folder / f"node{honest}", books.experiment, honest)
        rows.settle(books.tickets[honest], (10**6, 1))
        assert torch.equal(rows.rows()["lam"], books.shadow[honest])
    assert strategy.records[-1]["counted"] == [0, 1, 2]
