"""Masked sums beside the sums: what is sent is what records say, what is clipped comes later, budgets, members who change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import fedvra as fv
from fedvra.flower import MaskedSum, Strategy, client_app
from fedvra.flower.mask_table import COLUMNS
from fedvra.flower.masked_audit import sum_of_duals
from fedvra.flower.node import LEAVE
from fedvra.flower.protocol import ARRAYS, CONFIG, Errand, Order
from flower_grid import FakeGrid, Node, make_nodes, quadratic
from flower_masked import CLIENTS, masked_grid, masked_strategy, pin, run, unpin

HEADER = 128
"""Bytes of NumPy's format."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def distance(strategy: Strategy, problem: fv.Quadratic, weights: Any) -> float:
    """Of x0 from the minimiser under these weights, worked out without the library."""
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    A, b = torch.einsum("i,ipq->pq", share, problem.A), share @ problem.b
    return float((strategy.books.x0 - torch.linalg.solve(A, b)).norm())


# -- bytes -------------------------------------------------------------------------------------------------------------------


class Scales:
    """Weighs the vectors that go each way in rounds, by the record's number."""

    def __init__(self, grid: FakeGrid) -> None:
        self.up, self.down = dict[int, int](), dict[int, int]()
        grid.tamper = self.weigh

    def weigh(self, order: Order, reply: Message) -> Message:
        if order.errand == Errand.TRAIN:
            number = order.round + 1
            if not reply.has_error():
                sent = sum(len(array.data) - HEADER for array in reply.content[ARRAYS].values())
                self.up[number] = self.up.get(number, 0) + sent
            told = sum(t.numel() * t.element_size() for t in order.arrays.values())
            self.down[number] = self.down.get(number, 0) + told
        return reply


@pytest.mark.parametrize("bits", [8, 16, 27])
@pytest.mark.parametrize("algorithm", [fv.FedAvg(), fv.FedVRA(gamma=0.5, a=2), fv.Scaffold()], ids=lambda a: a.name)
def test_records_say_what_is_sent(algorithm: fv.Algorithm, bits: int, tmp_path: Path) -> None:
    """One vector or two, packed, and the table of clients on the way down; of a void round too."""
    grid = masked_grid(tmp_path)
    scales = Scales(grid)
    grid.fault = lambda o: "raises" if o.errand == Errand.TRAIN and o.client == 1 and o.round == 1 else ""
    work = fv.Steps([[2, 3, 4, 5, 6]] * 3)
    strategy = masked_strategy(tmp_path, algorithm, secure=MaskedSum(bits=bits), work=work, audit_every=0)
    run(strategy, grid, 3)
    assert [len(record["counted"]) for record in strategy.records] == [CLIENTS, 0, CLIENTS]
    for record in strategy.records:
        assert record["bytes_up"] == scales.up[record["round"]]
        assert record["bytes_down"] == scales.down[record["round"]]
    assert scales.up[2] == scales.up[1] * (CLIENTS - 1) // CLIENTS
    assert scales.down[1] > COLUMNS * 8 * CLIENTS**2


# -- what is clipped ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "work"),
    [
        (fv.FedVRA(gamma=0.5, a=2), fv.Steps(8)),
        (fv.FedVRA(), fv.Steps(8)),
        (fv.FedVRA(), fv.Steps([[4, 6, 8, 10, 12]] * 400)),
        (fv.Scaffold(), fv.Steps([[4, 6, 8, 10, 12]] * 400)),
    ],
    ids=["one sum", "auto", "auto, two sums", "two sums"],
)
def test_clipping_is_said_and_delays_and_nothing_else(
    algorithm: fv.Algorithm, work: fv.Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range takes what moves reached on average, and no more: what is left out stays in the duals, and comes."""
    monkeypatch.setattr("fedvra.flower.mask_scheme.HEADROOM", 1.0)
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, algorithm, work=work, audit_every=30)
    run(strategy, grid, 180)
    assert sum("clipped" in record for record in strategy.records) > 20
    assert all(0 < record.get("clipped", 1) <= 1 for record in strategy.records)
    assert [record["audit"]["gap"] for record in strategy.records if "audit" in record] == [0.0] * 6
    assert distance(strategy, quadratic(CLIENTS), [1] * CLIENTS) < 1e-3


def test_a_reach_that_was_guessed_far_too_low_is_mended_in_a_round(tmp_path: Path) -> None:
    """A first move a thousand times as long as a gradient of 1 makes it: clipped once, and the unit follows."""
    problem = quadratic(CLIENTS)
    steep = fv.Quadratic(problem.A, 1000 * problem.b)
    grid = masked_grid(tmp_path, steep)
    strategy = masked_strategy(tmp_path, problem=steep, work=fv.Steps(8), audit_every=0)
    run(strategy, grid, 60)
    assert strategy.records[0]["clipped"] > 0.5
    assert not any("clipped" in record for record in strategy.records[3:])
    assert strategy.audit(grid).gap == 0.0
    assert distance(strategy, steep, [1] * CLIENTS) < 1e-1


# -- records with a budget ---------------------------------------------------------------------------------------------------


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def shard(i: int, samples: int = 40) -> fv.Dataset:
    rng = np.random.default_rng(i)
    inputs = rng.normal(size=(samples + 10 * i, 5)).astype(np.float32)
    return fv.Dataset("shard", torch.from_numpy(inputs), torch.from_numpy(inputs[:, :3].argmax(1)), classes=3)


def private(
    folder: Path, algorithm: fv.Algorithm, own: list[fv.RecordDP | None], **more: Any
) -> tuple[Strategy, FakeGrid]:
    """A masked federation of those who have a rule of privacy of their own, or None."""
    pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")
    problem = fv.Supervised(net)
    apps = [client_app(problem=problem, data=shard(i), privacy=rule) for i, rule in enumerate(own)]
    nodes = {100 + i: Node(i, folder / f"node{i}", app) for i, app in enumerate(apps)}
    pin(nodes.values(), folder)
    options: dict[str, Any] = {"lr": 0.1, "batch_size": 8, "seed": 1, "work": fv.Steps(4), "weights": "samples", **more}
    return masked_strategy(folder, algorithm, problem=problem, clients=len(own), **options), FakeGrid(nodes)


UNEQUAL = fv.Steps([[2, 3, 4, 5]] * 3)
"""With epochs of noised numbers of samples, two clients may have the same work, and two sums would tell too much."""
ALGORITHMS: list[tuple[fv.Algorithm, fv.Work]] = [
    (fv.FedAvg(), fv.Epochs(1)),
    (fv.FedVRA(gamma=0.1, a=2, d=1), fv.Epochs(1)),
    (fv.FedVRA(), UNEQUAL),
    (fv.Scaffold(), UNEQUAL),
]


@pytest.mark.parametrize(("algorithm", "work"), ALGORITHMS, ids=[repr(algorithm) for algorithm, _ in ALGORITHMS])
def test_noise_goes_in_before_the_masks(algorithm: fv.Algorithm, work: fv.Work, tmp_path: Path) -> None:
    """The same weights on both sides, of numbers of samples that were noised once; an epsilon; no loss; a gap of 0."""
    strategy, grid = private(tmp_path, algorithm, [None] * 4, privacy="record:clip=1,noise=2", work=work)
    said: list[Any] = []
    grid.tamper = lambda order, reply: said.append((order, reply)) or reply  # type: ignore[func-returns-value]
    run(strategy, grid, 3)
    told = strategy.books.samples
    assert told.tolist() != [40, 50, 60, 70]
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2, 3]] * 3
    assert all(record["train_loss"] is None and record["epsilon"] > 0 for record in strategy.records)
    assert (np.diff([record["epsilon"] for record in strategy.records]) > 0).all()
    found = strategy.audit(grid)
    assert (found.gap, found.missing) == (0.0, {})
    trained = [reply.content[CONFIG] for order, reply in said if order.errand == Errand.TRAIN]
    assert len(trained) == 12
    assert all(config["loss"] == 0.0 and config["silent"] == 1 for config in trained)
    assert all(config["samples"] == told[int(config["client"])] for config in trained)
    table = next(order.arrays["table"].reshape(4, COLUMNS) for order, _ in said if order.errand == Errand.TRAIN)
    np.testing.assert_allclose(table[:, 1], told / told.sum())


def test_without_noise_the_sum_is_that_of_plain_private_uploads(tmp_path: Path) -> None:
    """Whole batches, clipping and no noise: nothing is drawn, and masks are all that differs."""
    rule, more = "record:clip=0.1,noise=0,count_noise=0", {"batch_size": None, "audit_every": 0}
    algorithm = fv.FedVRA(gamma=0.1, a=2, d=1)
    found = []
    for name, secure in (("plain", None), ("masked", MaskedSum(bits=32))):
        strategy, grid = private(tmp_path / name, algorithm, [None] * 3, privacy=rule, secure=secure, **more)
        for node in grid.nodes.values() if secure is None else ():
            node.config.clear()
        run(strategy, grid, 4)
        assert [len(record["counted"]) for record in strategy.records] == [3] * 4
        found.append(strategy.books)
    torch.testing.assert_close(found[1].x0, found[0].x0, rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1].lam, found[0].lam, rtol=0, atol=1e-6)


def test_who_has_spent_its_budget_is_not_asked_again_and_costs_the_others_nothing(tmp_path: Path) -> None:
    """A round without it would be void, and those who answered would have paid for it."""
    poor, rich = fv.RecordDP(noise=2, max_epsilon=3), fv.RecordDP(noise=2)
    strategy, grid = private(tmp_path, fv.FedVRA(gamma=0.1, a=2), [rich, poor, rich], max_void=3, work=fv.Steps(12))
    strategy.start(grid, num_rounds=20, timeout=0.01)
    counted = [record for record in strategy.records if record["counted"]]
    assert 1 <= len(counted) < 20
    void = strategy.records[len(counted) :]
    assert len(void) == 3
    assert "privacy budget is spent" in void[0]["lost"][1]
    assert [record["lost"] for record in void[1:]] == [{1: "has spent its privacy budget"}] * 2
    assert "nobody counted in 3 rounds in a row" in void[-1]["stopped"]
    trained = [order.client for order in grid.sent if order.errand == Errand.TRAIN]
    assert trained.count(0) == len(counted) + 1
    assert strategy.audit(grid).gap == 0.0


# -- members -----------------------------------------------------------------------------------------------------------------


def test_who_grows_keeps_its_part_of_lam_and_shows_nothing_of_it(tmp_path: Path) -> None:
    """A sum of the duals by the new weights would tell its dual: (n + dn)*lam_new - n*lam = dn*lam_i."""
    problem, samples = quadratic(CLIENTS), [4, 1, 3, 2, 5]
    grid = FakeGrid(make_nodes(problem, tmp_path))
    pin(grid.nodes.values(), tmp_path)

    def say(order: Order, reply: Message) -> Message:
        if order.errand in (Errand.HELLO, Errand.TRAIN) and not reply.has_error():
            config = reply.content[CONFIG]
            config["samples"] = samples[int(config["client"])]
        return reply

    grid.tamper = say
    strategy = masked_strategy(tmp_path, work=fv.Steps(8), audit_every=0, weights="samples")
    run(strategy, grid, 3)
    samples[1] = 8
    run(strategy, grid, 60)
    assert Errand.REPORT not in {order.errand for order in grid.sent}
    assert [record["samples"] for record in strategy.records if "samples" in record] == [{1: [1, 8]}]
    assert strategy.records[4]["samples"] == {1: [1, 8]}  # it said so with its reply of the round before
    assert strategy.audit(grid).gap == 0.0
    assert distance(strategy, problem, samples) < 1e-4


def test_sums_of_duals_are_the_same_by_whatever_weights_they_are_asked_for(tmp_path: Path) -> None:
    """A server that names others gets no second equation."""
    strategy, grid = masked_strategy(tmp_path, audit_every=0, weights="samples"), masked_grid(tmp_path)
    run(strategy, grid, 3)
    found = []
    for samples in ([1, 1, 1, 1, 1], [3, 1, 1, 1, 1]):
        strategy.books.samples[:] = samples
        found.append(sum_of_duals(strategy, grid, np.arange(CLIENTS)))
    assert torch.equal(*found)
    assert torch.equal(found[0], strategy.books.whole)


def test_equal_weights_do_not_need_a_sum_of_duals_when_somebody_grows(tmp_path: Path) -> None:
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, audit_every=0)
    run(strategy, grid, 2)
    strategy.said[1] = 9
    grid.sent.clear()
    strategy.play(grid)
    assert strategy.records[-1]["samples"] == {1: [1, 9]}
    assert {order.errand for order in grid.sent} == {Errand.TRAIN}


def test_a_farewell_is_heard_with_the_next_message(tmp_path: Path) -> None:
    """A node that was restarted so fast that it was not introduced anew."""
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, work=fv.Steps(8), audit_every=0)
    run(strategy, grid, 3)
    grid.nodes[102].config[LEAVE] = True
    strategy.play(grid)
    assert "wants to leave" in strategy.records[-1]["lost"][2]
    unpin(grid, 2)
    strategy.play(grid)
    assert strategy.records[-1]["left"] == [2]
    while strategy.books.round < 60:
        strategy.play(grid)
    assert strategy.audit(grid).gap == 0.0
    assert distance(strategy, quadratic(CLIENTS), [1, 1, 0, 1, 1]) < 1e-4
