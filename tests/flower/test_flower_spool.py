"""A round's uploads wait on the disk: few are in memory at a time, and the order in which they come decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

import fedvra as fv
from fedvra.flower import Strategy, exchange
from fedvra.flower.protocol import ARRAYS, Errand
from fedvra.flower.spool import Spool, columns
from flower_grid import FakeGrid, make_nodes, quadratic

CLIENTS = 7


@pytest.fixture(autouse=True)
def _on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.001)
    monkeypatch.setattr("fedvra.flower.spool.IN_MEMORY", 1)
    monkeypatch.setattr("fedvra.policies.refusals.BLOCK", CLIENTS)  # one column at a time


@dataclass
class InOrder(FakeGrid):
    """Replies to train messages come in a given order of the clients, each when the one before has been fetched."""

    order: list[int] = field(default_factory=list)
    _left: list[str] = field(default_factory=list)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = super().push_messages(messages)
        orders = self.sent[-len(numbers) :]
        train = {o.client: n for o, n in zip(orders, numbers, strict=True) if o.errand == Errand.TRAIN}
        self._left = [train[client] for client in self.order if client in train]
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (number,) = message_ids
        if number in self._left[1:]:
            return []
        if number in self._left:
            self._left.remove(number)
        return super().pull_messages([number])


def run(folder: Path, grid: type[FakeGrid] = FakeGrid, rounds: int = 3, **more: Any) -> tuple[Strategy, FakeGrid]:
    problem = quadratic(CLIENTS, size=5, dtype=torch.float32)
    made = {name: more.pop(name) for name in ("order",) if name in more}
    connection = grid(make_nodes(problem, folder), **made)
    settings = {"sampler": fv.Full(), "work": fv.Steps(3), "lr": 0.05, **more}
    strategy = Strategy(
        fv.FedVRA(gamma=0.3, a=2), problem=problem, clients=CLIENTS, folder=folder / "books", wait=0, **settings
    )
    strategy.start(connection, num_rounds=rounds, timeout=30)
    return strategy, connection


def test_bits_do_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    orders = [list(range(CLIENTS)), list(range(CLIENTS))[::-1], [3, 0, 6, 1, 5, 2, 4]]
    found = [run(tmp_path / str(k), InOrder, order=order)[0] for k, order in enumerate(orders)]
    for strategy in found[1:]:
        assert [record["counted"] for record in strategy.records] == [list(range(CLIENTS))] * 3
        assert torch.equal(strategy.books.x0, found[0].books.x0)
        assert torch.equal(strategy.books.lam, found[0].books.lam)


def test_the_order_of_a_sum_would_show() -> None:
    """Otherwise the test above could not fail."""
    rows = torch.randn(CLIENTS, 1000, generator=torch.Generator().manual_seed(0))
    forward, backward = torch.zeros(1000), torch.zeros(1000)
    for k in range(CLIENTS):
        forward += rows[k]
        backward += rows[CLIENTS - 1 - k]
    assert not torch.equal(forward, backward)


@pytest.mark.parametrize("rule", [fv.MedianNorm(1.2), fv.MultiKrum(2)], ids=repr)
def test_rules_that_look_at_all_uploads_read_them_from_the_disk(rule: Any, tmp_path: Path) -> None:
    strategy, grid = run(tmp_path, refuse=rule)
    expected = fv.simulate(
        fv.FedVRA(gamma=0.3, a=2),
        problem=quadratic(CLIENTS, size=5, dtype=torch.float32),
        sampler=fv.Full(),
        work=fv.Steps(3),
        lr=0.05,
        rounds=3,
        refuse=rule,
        workers=1,
    )
    assert [r["refused"] for r in strategy.records] == [m["refused"] for m in expected.metrics]
    assert all(r["refused"] for r in strategy.records)
    torch.testing.assert_close(strategy.books.x0, expected.x0, rtol=1e-6, atol=1e-6)
    assert strategy.audit(grid).relative < 1e-6


def test_the_messages_of_a_round_share_one_array(tmp_path: Path) -> None:
    strategy, grid = run(tmp_path, rounds=1)
    messages = list(strategy.configure_train(2, ArrayRecord(), ConfigRecord(), grid))
    assert len(messages) == CLIENTS
    assert len({id(message.content[ARRAYS]["x0"]) for message in messages}) == 1


@dataclass
class Counted(FakeGrid):
    """How many replies are fetched at once."""

    now: int = 0
    most: int = 0
    _meet: Any = field(default_factory=lambda: threading.Barrier(2))
    """The first two wait for each other."""
    _first: Any = field(default_factory=lambda: iter(range(2)))
    _lock: Any = field(default_factory=threading.Lock)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            wait = next(self._first, None) is not None
        if wait:
            self._meet.wait(60)
        time.sleep(0.01)  # for a third, were there one
        with self._lock:
            self.now -= 1
        return super().pull_messages(message_ids)


def test_few_replies_are_fetched_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "TURNS", 2)
    monkeypatch.setattr(exchange, "PATIENCE_SECONDS", 600.0)  # after which a turn is given to another
    strategy, grid = run(tmp_path, Counted, rounds=1)
    assert isinstance(grid, Counted)
    assert grid.most == 2
    assert strategy.records[0]["counted"] == list(range(CLIENTS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_spool_gives_back_what_it_was_given(dtype: torch.dtype, tmp_path: Path) -> None:
    vectors = [torch.randn(n, dtype=dtype) for n in (5, 1, 300)]
    with Spool(tmp_path) as spool:
        stored = [spool.add(vector) for vector in vectors]
        for there, vector in zip(reversed(stored), reversed(vectors), strict=True):
            assert torch.equal(there.read(), vector)
        assert torch.equal(stored[2].read(100, 200), vectors[2][100:200])
        assert list(tmp_path.iterdir()) == []  # it has no name that anybody could open
        rows = [spool.add(vector) for vector in torch.arange(12.0, dtype=dtype).reshape(2, 6)]
        assert torch.equal(torch.cat(list(columns(rows, 4)), dim=1), torch.arange(12.0, dtype=dtype).reshape(2, 6))


class Full:
    def seek(self, place: int) -> None: ...

    def close(self) -> None: ...

    def write(self, data: Any) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_the_run_and_the_books_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid = run(tmp_path, rounds=1)
    before = strategy.books.x0.clone()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.SpooledTemporaryFile", lambda **kwargs: Full())
        with pytest.raises(fv.FedvraError, match="free some space"):
            strategy.play(grid)
    assert strategy.books.round == 1
    assert torch.equal(strategy.books.x0, before)
    strategy.play(grid)
    assert strategy.records[-1]["counted"] == list(range(CLIENTS))
    assert strategy.audit(grid).relative < 1e-6
    assert not np.array_equal(strategy.books.x0, before)
