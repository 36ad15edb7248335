"""Somebody with a grudge, in memory: uploads meant to spoil the model, and claims to another's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import fedvra as fv
from fedvra.flower.protocol import Errand, Order
from flower_grid import FakeGrid, make_nodes, quadratic
from flower_hostile import make_strategy, replaced


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


# -- uploads that would spoil the model -------------------------------------------------------------------------------------


def test_an_upload_that_is_finite_and_absurd_never_counts(tmp_path: Path) -> None:
    problem = quadratic(dtype=torch.float32)
    grid = FakeGrid(make_nodes(problem, tmp_path))
    grid.tamper = replaced(lambda move: torch.full_like(move, 3e38), client=1, round=1)
    strategy = make_strategy(tmp_path, problem=problem)
    strategy.start(grid, num_rounds=4, timeout=1)
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert "absurd beside" in strategy.records[1]["lost"][1]
    assert strategy.audit(grid).relative < 1e-5


@pytest.mark.parametrize("rule", [fv.MedianNorm(3), fv.MultiKrum(2)], ids=repr)
def test_attackers_are_refused_and_the_duals_stay_exact(rule: Any, tmp_path: Path) -> None:
    problem = quadratic(clients=9)
    attackers, grid = (2, 5), FakeGrid(make_nodes(problem, tmp_path))

    def tamper(order: Order, reply: Message) -> Message:
        return (
            replaced(lambda move: -40 * move, order.client, order.round)(order, reply)
            if order.client in attackers
            else reply
        )

    grid.tamper = tamper
    work = fv.Steps([[2 + i for i in range(9)]] * 10)  # some do five times as much as others
    strategy = make_strategy(tmp_path, problem=problem, clients=9, refuse=rule, work=work, lr=0.02)
    strategy.start(grid, num_rounds=10, timeout=1)
    for record in strategy.records:
        assert set(attackers) <= set(record["refused"])
        assert not set(attackers) & set(record["counted"])
        assert f"is refused by {rule!r}" in record["lost"][2]
    assert strategy.records[0]["counted"] == [0, 1, 3, 4, 6, 7, 8]
    audit = strategy.audit(grid)
    assert audit.missing == {}
    assert audit.exact
    assert audit.relative < 1e-12


def test_what_is_refused_on_flower_is_refused_by_the_simulator(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    b = torch.as_tensor(rng.normal(size=(6, 4)))
    b[4] *= 300
    problem = fv.Quadratic(torch.eye(4, dtype=torch.float64).expand(6, 4, 4).contiguous(), b)
    options = {
        "problem": problem,
        "sampler": fv.Uniform(5),
        "work": fv.Steps(3),
        "lr": 0.05,
        "refuse": fv.MedianNorm(4),
    }
    strategy = make_strategy(tmp_path, clients=6, **options)
    strategy.start(FakeGrid(make_nodes(problem, tmp_path)), num_rounds=8, timeout=1)
    expected = fv.simulate(fv.FedVRA(gamma=0.5, a=2), rounds=8, workers=1, **options)
    assert [r["refused"] for r in strategy.records] == [m["refused"] for m in expected.metrics]
    assert any(4 in record["refused"] for record in strategy.records)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12)


@pytest.mark.parametrize("shadow", [False, True])
def test_an_audit_by_itself_sees_one_upload_with_its_sign_changed(
    shadow: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It passes every check and moves the solution for good; nothing else would ever show it."""
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.tamper = replaced(lambda move: -move, client=1, round=4)
    strategy = make_strategy(tmp_path, audit_every=3, shadow=shadow)
    strategy.start(grid, num_rounds=7, timeout=1)
    audits = {record["round"]: record["audit"] for record in strategy.records if "audit" in record}
    assert sorted(audits) == [3, 6]
    assert audits[3]["gap"] < 1e-12 < 1e-3 < audits[6]["gap"]
    assert audits[6]["differ"] == ([1] if shadow else [])
    warned = [record.getMessage() for record in caplog.records if "are not what was uploaded" in record.getMessage()]
    assert len(warned) == 1
    assert ("clients [1]" if shadow else "some clients") in warned[0]


# -- another's place --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["here", "away"])
def test_a_client_number_belongs_to_the_key_that_claimed_it_first(owner: str, tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy = make_strategy(tmp_path)
    strategy.start(grid, num_rounds=2, timeout=1)
    sent = len(grid.sent)
    grid.nodes[666] = replace(grid.nodes[101], folder=tmp_path / "impostor", key=b"another")
    if owner == "away":
        del grid.nodes[101]
    strategy.play(grid)
    assert strategy.records[-1]["counted"] == ([0, 1, 2] if owner == "here" else [0, 2])
    assert not (tmp_path / "impostor").exists()
    assert [order.errand for order in grid.sent[sent:]].count(Errand.HELLO) == 1  # and nothing after that
    assert strategy.audit(grid).missing.keys() == (set() if owner == "here" else {1})


def test_a_key_belongs_to_one_client(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.nodes[102].key = grid.nodes[101].key = b"the same"
    with pytest.raises(fv.FedvraError, match=r"Node 102 \(client 2\) is refused: its key \w{16} belongs to client 1"):
        make_strategy(tmp_path).start(grid, num_rounds=1, timeout=1)


def test_a_restart_of_the_server_does_not_forget_whose_number_it_was(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    make_strategy(tmp_path).start(grid, num_rounds=2, timeout=1)
    grid.nodes[666] = replace(grid.nodes.pop(101), key=b"another")
    strategy = make_strategy(tmp_path)
    strategy.start(grid, num_rounds=3, timeout=1)
    assert strategy.records[-1]["counted"] == [0, 2]
