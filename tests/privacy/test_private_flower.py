"""Record-level privacy on nodes: they stop by themselves, remember what they spent, and tell nothing without noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import fedvra as fv
from fedvra.core.errors import FedvraError
from fedvra.flower import Strategy, client_app
from fedvra.flower.privacy_book import BudgetSpentError, PrivacyBook
from fedvra.flower.protocol import pack, unpack_answer
from fedvra.privacy.accountant import Answer, epsilon
from flower_grid import FakeGrid, Node

pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")

CLIENTS = 3
RULE = fv.RecordDP(noise=2, max_epsilon=4)


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


PROBLEM = fv.Supervised(net)


def shard(i: int, samples: int = 40) -> fv.Dataset:
    rng = np.random.default_rng(i)
    inputs = rng.normal(size=(samples, 5)).astype(np.float32)
    return fv.Dataset("shard", torch.from_numpy(inputs), torch.from_numpy(inputs[:, :3].argmax(1)), classes=3)


def nodes(folder: Path, **more: Any) -> dict[int, Node]:
    made = [client_app(problem=PROBLEM, data=shard(i), **more) for i in range(CLIENTS)]
    return {100 + i: Node(i, folder / f"node{i}", app) for i, app in enumerate(made)}


def strategy(folder: Path, **more: Any) -> Strategy:
    options: dict[str, Any] = {
        "sampler": fv.Full(),
        "work": fv.Steps(4),
        "lr": 0.1,
        "batch_size": 8,
        "wait": 0,
        "seed": 1,
    }
    return Strategy(
        fv.FedVRA(gamma=0.1, a=2, d=1), problem=PROBLEM, clients=CLIENTS, folder=folder, **{**options, **more}
    )


def test_a_node_stops_by_itself_and_remembers_after_a_restart(tmp_path: Path) -> None:
    """Its own rule, the server knows nothing of it; the budget lasts over a new experiment on the same records."""
    grid, server = FakeGrid(nodes(tmp_path, privacy=RULE)), strategy(tmp_path / "books")
    server.start(grid, num_rounds=60, timeout=1)  # many more than a budget for 80 records allows: n_i is noised
    last = server.records[-1]
    assert last["counted"] == []
    assert all("privacy budget" in why for why in last["lost"].values())
    counted = [record for record in server.records if record["counted"]]
    assert counted
    assert all(0 < record["epsilon"] <= 4 and record["train_loss"] is None for record in counted)
    for i in range(CLIENTS):  # who said so was not asked again
        asked = [order for order in grid.sent if order.errand == "train" and order.client == i]
        assert len(asked) == sum(i in record["counted"] for record in counted) + 1
    anew = strategy(tmp_path / "other books")
    anew.start(FakeGrid(nodes(tmp_path, privacy=RULE)), num_rounds=1, timeout=1)
    assert anew.records[-1]["counted"] == []


def test_the_servers_rule_holds_where_a_node_has_none(tmp_path: Path) -> None:
    grid, server = FakeGrid(nodes(tmp_path)), strategy(tmp_path / "books", privacy="record:clip=1,noise=2")
    server.start(grid, num_rounds=2, timeout=1)
    assert all(order.privacy == "record:clip=1,noise=2" for order in grid.sent)
    told = server.books.samples
    assert all(told >= 1)
    assert np.array_equal(server.records[-1]["counted"], range(CLIENTS))
    audit = server.audit(grid)
    assert audit.gap < 1e-6  # lam is the sum of the duals, as ever
    expected = max(epsilon({Answer(min(1, 8 / n), 2.0): 8, Answer(1.0, 5.0): 1}, 1e-5) for n in told.tolist())
    assert server.records[-1]["epsilon"] == pytest.approx(expected)


def test_draws_do_not_follow_from_the_seed_that_the_server_knows(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        server = strategy(tmp_path / name / "books", privacy=fv.RecordDP(noise=2, count_noise=0))
        server.start(FakeGrid(nodes(tmp_path / name)), num_rounds=1, timeout=1)
        found.append(server.books.x0)
    assert not torch.equal(*found)


def test_what_is_spent_is_on_disk_before_the_reply_leaves(tmp_path: Path) -> None:
    """Every reply is lost, and all the same paid for."""
    seen: list[int] = []

    def look(order: Any, reply: Any) -> Any:
        if order.errand == "train":
            book = json.loads((tmp_path / f"node{order.client}" / f"privacy-{order.client:06d}.json").read_text())
            seen.append(sum(count for rate, noise, count in book["answers"] if noise == 2.0))
            assert unpack_answer(reply.content).silent == 1
        return reply

    grid = FakeGrid(nodes(tmp_path, privacy=RULE), fault=lambda order: "", tamper=look)
    strategy(tmp_path / "books").start(grid, num_rounds=2, timeout=1)
    assert seen == [4] * CLIENTS + [8] * CLIENTS


@pytest.mark.parametrize("lie", [{"steps": -3}, {"steps": 0}, {"batch_size": -8}, {"eta": math.nan}])
def test_an_order_of_no_work_gives_no_budget_back(lie: dict[str, Any], tmp_path: Path) -> None:
    """By whoever has the server: fewer than no steps would be taken off what the book says was spent."""
    made = nodes(tmp_path, privacy=RULE)
    grid, server = FakeGrid(made), strategy(tmp_path / "books")
    server.start(grid, num_rounds=1, timeout=1)
    book = tmp_path / "node0" / "privacy-000000.json"
    before = book.read_bytes()
    order = next(order for order in reversed(grid.sent) if (order.errand, order.client) == ("train", 0))
    hostile = replace(order, number=order.number + 100, counted=server.books.tickets[0], **lie)
    answer = unpack_answer(made[100].handle(Message(pack(hostile), 100, "train")).content)
    assert (answer.status, dict(answer.arrays)) == ("refused", {})
    assert book.read_bytes() == before


def test_losses_results_and_loops_of_ones_own_are_refused(tmp_path: Path) -> None:
    server = strategy(tmp_path / "a", sampler=fv.PowerOfChoice(1, 2), wait=0)
    grid = FakeGrid(nodes(tmp_path, privacy=RULE))
    server.start(grid, num_rounds=1, timeout=1)
    answers = [order for order in grid.sent if order.errand == "loss"]
    assert answers  # asked, and every node came last, as those do who do not tell
    loop = strategy(tmp_path / "b", local=fv.Loop())
    loop.start(FakeGrid(nodes(tmp_path, privacy=RULE)), num_rounds=1, timeout=1)
    assert all("loop" in why for why in loop.records[-1]["lost"].values())


class TestBook:
    def test_a_number_is_told_once(self, tmp_path: Path) -> None:
        book = PrivacyBook(tmp_path, 0)
        said = book.told(RULE, 1000)
        assert PrivacyBook(tmp_path, 0).told(RULE, 1000) == said
        assert abs(said - 1000) < 50
        book.told(RULE, 1001)
        assert json.loads(book.path.read_text())["answers"] == [[1.0, 5.0, 2]]
        assert book.told(fv.RecordDP(count_noise=0), 7) == 7

    def test_nothing_is_entered_that_is_not_affordable(self, tmp_path: Path) -> None:
        book = PrivacyBook(tmp_path, 0)
        first = book.charge(RULE, 1000, 50, 100)
        with pytest.raises(BudgetSpentError, match="4 is what it allows"):
            book.charge(RULE, 1000, 50, 10**6)
        assert book.charge(RULE, 1000, 50, 1) == pytest.approx(first, rel=0.05)

    @pytest.mark.parametrize(("batch_size", "steps"), [(50, -90), (50, 0), (-50, 10), (0, 10)])
    def test_nothing_is_ever_taken_out_again(self, batch_size: int, steps: int, tmp_path: Path) -> None:
        book = PrivacyBook(tmp_path, 0)
        book.charge(RULE, 1000, 50, 100)
        before = book.path.read_bytes()
        with pytest.raises(fv.UsageError, match="privacy: "):
            book.charge(RULE, 1000, batch_size, steps)
        assert book.path.read_bytes() == before

    def test_one_that_was_changed_or_cut_short_stops_the_node(self, tmp_path: Path) -> None:
        key = b"k" * 32
        book = PrivacyBook(tmp_path, 0, key)
        book.charge(RULE, 1000, 50, 100)
        found = json.loads(book.path.read_text())
        found["answers"][0][2] = 1
        book.path.write_text(json.dumps(found))
        with pytest.raises(FedvraError, match="without the key"):
            book.charge(RULE, 1000, 50, 1)
        book.path.write_text("{")
        with pytest.raises(FedvraError, match="cannot be read"):
            PrivacyBook(tmp_path, 0).charge(RULE, 1000, 50, 1)
