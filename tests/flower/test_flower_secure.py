"""Masked sums against clients in memory: the simulator's model, a gap of exactly 0, and servers that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flwr.app import Message
from scipy.stats import chisquare

import fedvra as fv
from fedvra.cli import main
from fedvra.core.whole import Ring
from fedvra.flower import MaskedSum, client_app
from fedvra.flower.masked_node import LEAST, MASK_KEY, PEERS
from fedvra.flower.protocol import Errand, Order, read_array, unpack_answer, unpack_order
from flower_grid import FakeGrid, Node, make_nodes, quadratic
from flower_masked import CLIENTS, masked_grid, masked_strategy, orders_of_a_round, pin, run, say, unpin, without


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def minimiser(problem: fv.Quadratic) -> torch.Tensor:
    return torch.linalg.solve(problem.A.mean(0), problem.b.mean(0))


UNEQUAL = fv.Steps([[2, 3, 4, 5, 6]] * 300)
ALGORITHMS = [
    (fv.FedAvg(), 1),
    (fv.FedNova(), 1),
    (fv.Scaffold(), 2),
    (fv.FedADMM(gamma=0.5), 1),
    (fv.FedDyn(alpha=0.5), 1),
    (fv.FedVRA(gamma=0.5, a=2), 1),
    (fv.FedVRA(), 2),
]


@pytest.mark.parametrize(("algorithm", "vectors"), ALGORITHMS, ids=repr)
def test_the_model_is_the_simulators_but_for_rounding_and_the_gap_is_zero(
    algorithm: fv.Algorithm, vectors: int, tmp_path: Path
) -> None:
    """One sum where alpha_i/w_i is common; two for SCAFFOLD and auto under unequal work.

    auto's rules have thresholds, and rounding could carry a signal over one that it is near: here the nearest is a quarter of a
    per cent away, and rounding is below a millionth.
    """
    grid, sent = masked_grid(tmp_path), set[str]()
    options: dict[str, Any] = {"sampler": fv.Uniform(4), "work": UNEQUAL, "lr": 0.05}
    grid.tamper = lambda order, reply: sent.update(unpack_answer(reply.content).arrays) or reply  # type: ignore[func-returns-value]
    strategy = masked_strategy(tmp_path, algorithm, secure=MaskedSum(bits=32), audit_every=0, **options)
    run(strategy, grid, 8)
    assert not any("clipped" in record for record in strategy.records)  # or the rest would come in later rounds
    assert sent == {"move", "few", "second"} if vectors == 2 else sent == {"move", "few"}
    expected = fv.simulate(algorithm, problem=quadratic(CLIENTS), rounds=8, workers=1, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, atol=1e-6)
    np.testing.assert_allclose(strategy.books.lam, expected.lam, atol=1e-6)
    losses = [record["train_loss"] for record in strategy.records]
    np.testing.assert_allclose(losses, [record["train_loss"] for record in expected.metrics], atol=1e-6)
    reasons = [[each.get("multiplier_reason") for each in made] for made in (strategy.records, expected.metrics)]
    assert reasons[0] == reasons[1]
    found = strategy.audit(grid)
    assert (found.gap, found.missing) == (0.0, {})


def test_sixteen_bits_converge_to_the_minimiser(tmp_path: Path) -> None:
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, fv.FedVRA(gamma=0.5, a=2), work=fv.Steps(8), audit_every=20)
    run(strategy, grid, 60)
    assert float((strategy.books.x0 - minimiser(quadratic(CLIENTS))).norm()) < 1e-4
    assert [record["audit"]["gap"] for record in strategy.records if "audit" in record] == [0.0] * 3


def test_the_servers_view_of_a_single_upload_is_uniform(tmp_path: Path) -> None:
    """Chi-square over the leading bytes of all uploads of one client; what is underneath is small and far from uniform."""
    problem, seen = quadratic(3, size=2000), list[np.ndarray]()
    grid = FakeGrid(make_nodes(problem, tmp_path))
    pin(grid.nodes.values(), tmp_path)

    def look(order: Order, reply: Message) -> Message:
        if order.errand == Errand.TRAIN and order.client == 1:
            data = read_array(unpack_answer(reply.content).arrays["move"]).numpy()
            seen.append(Ring(16).decode(data, 2000))
        return reply

    grid.tamper = look
    strategy = masked_strategy(tmp_path, problem=problem, clients=3, work=fv.Steps(1), lr=0.01)
    run(strategy, grid, 10)
    assert all(record["counted"] == [0, 1, 2] for record in strategy.records)
    high = np.concatenate(seen) >> np.uint64(8)
    assert chisquare(np.bincount(high.astype(int), minlength=256)).pvalue > 1e-9


@pytest.mark.parametrize(
    ("steps", "least", "counted"), [((3, 3, 3, 3, 7), 3, 0), ((2, 3, 4, 5, 6), 3, 5), ((2, 3, 4, 5, 6), 5, 0)]
)
def test_two_sums_are_not_formed_where_their_difference_would_show_few_clients(
    steps: tuple[int, ...], least: int, counted: int, tmp_path: Path
) -> None:
    """Clients who are given the same number of steps fall out of a difference together, and would leave the fifth alone."""
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, fv.Scaffold(), work=fv.Steps([[*steps]] * 2), secure=MaskedSum(least=least))
    run(strategy, grid, 2)
    assert [len(record["counted"]) for record in strategy.records] == [counted] * 2
    asked = [order for order in grid.sent if order.errand == Errand.TRAIN]
    assert len(asked) == 2 * counted
    if not counted:
        assert "would count in a difference of its two sums" in strategy.records[0]["lost"][4]


# -- void rounds, retries, restarts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["unsent", "silent", "raises", "late", "garbled"])
@pytest.mark.parametrize("algorithm", [fv.FedVRA(gamma=0.5, a=2), fv.Scaffold()], ids=lambda a: a.name)
def test_a_round_without_everybody_is_void_and_harmless(fault: str, algorithm: fv.Algorithm, tmp_path: Path) -> None:
    grid = masked_grid(tmp_path)
    grid.fault = lambda o: fault if o.errand == Errand.TRAIN and o.client == 1 and o.round in (1, 2) else ""
    strategy, before = masked_strategy(tmp_path, algorithm), list[torch.Tensor]()
    run(strategy, grid, 1)
    before.append(strategy.books.x0.clone())
    run(strategy, grid, 3)
    assert torch.equal(strategy.books.x0, before[0])
    assert [record["counted"] for record in strategy.records[1:]] == [[], []]
    assert all(1 in record["lost"] for record in strategy.records[1:])
    run(strategy, grid, 6)
    assert strategy.records[-1]["counted"] == list(range(CLIENTS))
    assert strategy.audit(grid).gap == 0.0


def test_somebody_who_is_away_is_not_worked_around(tmp_path: Path) -> None:
    """Nobody is even asked: the others would work for nothing."""
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path)
    run(strategy, grid, 1)
    grid.offline, sent = {102}, len(grid.sent)
    run(strategy, grid, 2)
    assert strategy.records[-1]["counted"] == []
    assert [order.errand for order in grid.sent[sent:] if order.errand == Errand.TRAIN] == []


def test_a_server_that_dies_in_a_round_plays_it_again_under_other_masks(tmp_path: Path) -> None:
    grid, seen = masked_grid(tmp_path), list[tuple[int, int, bytes]]()

    def look(order: Order, reply: Message) -> Message:
        if order.errand == Errand.TRAIN:
            seen.append((order.round, order.client, unpack_answer(reply.content).arrays["move"].data))
        return reply

    grid.tamper = look
    strategy = masked_strategy(tmp_path)
    run(strategy, grid, 2)
    strategy.roster.refresh(grid, 0.01)
    grid.push_messages(strategy.configure_train(3, None, None, grid))  # type: ignore[arg-type]
    again = masked_strategy(tmp_path)  # the first is gone
    run(again, grid, 3)
    assert again.records[-1]["counted"] == list(range(CLIENTS))
    for client in range(CLIENTS):
        first, second = [data for number, who, data in seen if (number, who) == (2, client)]
        assert first != second
    expected = masked_strategy(tmp_path / "undisturbed")
    run(expected, masked_grid(tmp_path / "undisturbed"), 3)
    assert torch.equal(again.books.x0, expected.books.x0)
    assert torch.equal(again.books.lam, expected.books.lam)
    assert again.audit(grid).gap == 0.0


def test_a_client_that_lost_its_state_is_not_repaired_from_the_others(tmp_path: Path) -> None:
    """That would show the server its dual. Rounds with it are void until it leaves."""
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path)
    run(strategy, grid, 2)
    grid.nodes[101].wipe()
    run(strategy, grid, 4)
    assert [record["counted"] for record in strategy.records[2:]] == [[], []]
    assert "lost its state" in strategy.records[-1]["lost"][1]
    assert all("restore" not in order.arrays for order in grid.sent)
    assert 1 in strategy.audit(grid).missing


# -- servers that lie --------------------------------------------------------------------------------------------------------


LIES: dict[str, tuple[Callable[[Order], Order], str]] = {
    "no masks": (lambda o: replace(o, bits=0), "answers in masked sums only"),
    "a report": (lambda o: replace(o, bits=0, errand="report"), "answers in masked sums only"),
    "its loss": (lambda o: replace(o, bits=0, errand="loss"), "answers in masked sums only"),
    "a masked loss": (lambda o: replace(o, errand="loss"), "no masked sum for the errand"),
    "a test": (lambda o: replace(o, bits=0, errand="evaluate"), "answers in masked sums only"),
    "two others only": (lambda o: without(o, 2, 3, 4), "2 of the 2 clients"),
    "a dual": (lambda o: replace(o, arrays={**o.arrays, "restore": o.arrays["x0"]}), "to be restored"),
    "no table": (lambda o: replace(o, arrays={"x0": o.arrays["x0"]}), "right shape"),
    "no outcomes": (
        lambda o: replace(o, arrays={n: t for n, t in o.arrays.items() if n != "outcomes"}),
        "every round so far",
    ),
    "without me": (lambda o: without(o, 1), "client 1 is not in the table"),
    "more work": (lambda o: replace(o, steps=o.steps + 1), "other work than the table"),
    "another stepsize": (lambda o: replace(o, eta=o.eta * 2), "other work than the table"),
    "another penalty": (lambda o: replace(o, gamma=o.gamma / 2), "other work than the table"),
    "a unit of its own": (lambda o: replace(o, unit=o.unit * 3), "not that of the duals"),
    "no unit": (lambda o: replace(o, unit=0.0, grains=0), "units of the sum"),
    "compression": (lambda o: replace(o, compress="quantize"), "neither compressed uploads"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_refuses_what_would_show_it_alone(lie: str, tmp_path: Path) -> None:
    orders, grid = orders_of_a_round(tmp_path)
    change, why = LIES[lie]
    answer = say(grid, change(orders[1]))
    assert answer.status == "refused"
    assert why in answer.reason
    assert (dict(answer.arrays), answer.loss) == ({}, 0.0)
    assert say(grid, orders[1]).status == "done"  # and the lie has used up nothing


def test_two_cohorts_of_one_round_cannot_be_had(tmp_path: Path) -> None:
    """The difference of the two sums would be client 4's upload. Neither by a second order nor after a restart."""
    orders, grid = orders_of_a_round(tmp_path)
    assert all(say(grid, order).status == "done" for order in orders.values())
    for stamp in ({"number": 1000}, {"incarnation": 9}):
        for client in range(4):
            answer = say(grid, without(replace(orders[client], **stamp), 4))
            assert (answer.status, dict(answer.arrays)) == ("refused", {})
            assert "was answered before" in answer.reason
    assert say(grid, orders[0]).status == "stale"  # the same order again
    assert say(grid, replace(orders[0], incarnation=10)).status == "done"  # the same work again, under other masks


def test_a_wiped_ledger_does_not_give_masks_a_second_time(tmp_path: Path) -> None:
    orders, grid = orders_of_a_round(tmp_path)
    assert say(grid, orders[0]).status == "done"
    grid.nodes[100].wipe()
    answer = say(grid, replace(orders[0], counted=""))
    assert (answer.status, dict(answer.arrays)) == ("refused", {})
    assert "its masks were used" in answer.reason


@pytest.mark.parametrize("lie", ["x0", "roster"])
def test_a_server_that_tells_clients_different_things_gets_noise(lie: str, tmp_path: Path) -> None:
    problem = quadratic(CLIENTS, size=3000)
    grid = FakeGrid(make_nodes(problem, tmp_path))
    pin(grid.nodes.values(), tmp_path)
    strategy = masked_strategy(tmp_path, problem=problem, work=fv.Steps(1), lr=0.01)
    run(strategy, grid, 1)
    orders = [
        unpack_order(m.content)
        for m in strategy.configure_train(2, None, None, grid)  # type: ignore[arg-type]
    ]
    target = orders[0]
    if lie == "x0":
        orders[0] = replace(target, arrays={**target.arrays, "x0": target.arrays["x0"] + 1})
    else:
        orders[0] = without(target, 4)
    answers = [say(grid, order) for order in orders]
    assert {answer.status for answer in answers} == {"done"}
    words = [Ring(16).decode(read_array(answer.arrays["move"]).numpy(), 3000) for answer in answers]
    total = sum(words[1:], start=words[0]) & Ring(16).mask
    assert chisquare(np.bincount((total >> np.uint64(8)).astype(int), minlength=256)).pvalue > 1e-9


def test_a_node_has_its_own_mind_about_the_least_and_whom_it_knows(tmp_path: Path) -> None:
    orders, grid = orders_of_a_round(tmp_path)
    node = grid.nodes[101]
    node.config[LEAST] = 6
    assert "6 is the least" in say(grid, orders[1]).reason
    node.config[LEAST] = 3
    peers = Path(node.config[PEERS])
    lines = peers.read_text().splitlines()
    (tmp_path / "four").write_text("\n".join(lines[:4]))
    node.config[PEERS] = str(tmp_path / "four")
    assert "keys of clients [4] are not pinned" in say(grid, orders[1]).reason
    node.config[PEERS], node.config[MASK_KEY] = str(peers), grid.nodes[102].config[MASK_KEY]
    assert "is not the key" in say(grid, orders[1]).reason
    del node.config[MASK_KEY]
    assert "start this node with fedvra-mask-key" in say(grid, orders[1]).reason


def test_a_plain_server_gets_nothing_from_nodes_with_keys(tmp_path: Path) -> None:
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, secure=None)
    run(strategy, grid, 1)
    assert strategy.records[-1]["counted"] == []
    assert "answers in masked sums only" in strategy.records[-1]["lost"][0]


# -- other things that are sent ----------------------------------------------------------------------------------------------


def test_buffers_and_losses_come_in_sums(tmp_path: Path) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))

    rng = np.random.default_rng(0)
    dataset = fv.Dataset("made up", torch.tensor(rng.normal(size=(90, 4)), dtype=torch.float32), torch.arange(90) % 3)
    data, problem = fv.split(dataset, fv.IID(), clients=3, seed=0), fv.Supervised(model, buffers="average")
    nodes = {100 + i: Node(i, tmp_path / f"node{i}", client_app(problem=problem, data=data)) for i in range(3)}
    pin(nodes.values(), tmp_path)
    grid = FakeGrid(nodes)
    said: list[Any] = []
    grid.tamper = lambda order, reply: said.append(unpack_answer(reply.content)) or reply  # type: ignore[func-returns-value]
    options: dict[str, Any] = {"sampler": fv.Full(), "work": fv.Epochs(1), "lr": 0.05, "batch_size": 10}
    algorithm = fv.FedVRA(gamma=0.5, a=2)
    strategy = masked_strategy(tmp_path, algorithm, problem=problem, clients=3, secure=MaskedSum(bits=32), **options)
    run(strategy, grid, 3)
    expected = fv.simulate(algorithm, problem=problem, data=data, rounds=3, workers=1, **options)
    assert [len(record["counted"]) for record in strategy.records] == [3, 3, 3]
    np.testing.assert_allclose(strategy.books.x0, expected.x0, atol=1e-5)
    last = [record["train_loss"] for record in strategy.records], [m["train_loss"] for m in expected.metrics]
    np.testing.assert_allclose(*last, atol=1e-5)
    assert strategy.books.aux is not None
    assert strategy.books.aux.numel() == 16
    trained = [answer for answer in said if answer.ticket]
    assert {answer.loss for answer in trained} == {0.0}
    assert all(set(answer.arrays) == {"move", "few"} for answer in trained)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"refuse": fv.MedianNorm(3)}, "refuse looks at single uploads"),
        ({"shadow": True}, "shadow follows single duals"),
        ({"max_norm": 3.0}, "max_norm looks at single uploads"),
        ({"compress": "quantize:4"}, "compress makes vectors that do not add up"),
        ({"evaluate_every": 2}, "evaluate_every asks for results of single clients"),
        ({"sampler": fv.PowerOfChoice(3, 4)}, "PowerOfChoice asks for losses of single clients"),
        ({"local": fv.Loop()}, "local=Loop needs to hear what each client did"),
        ({"secure": MaskedSum(least=6)}, "fewer than the least"),
        ({"secure": True}, "secure must be"),
    ],
)
def test_what_needs_single_clients_is_refused_in_a_sentence(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(fv.UsageError, match=why):
        masked_strategy(tmp_path, **options)
    assert not (tmp_path / "server").exists()


def test_a_run_does_not_change_between_masked_and_plain(tmp_path: Path) -> None:
    strategy = masked_strategy(tmp_path)
    run(strategy, masked_grid(tmp_path), 1)
    with pytest.raises(fv.UsageError, match="another experiment"):
        run(masked_strategy(tmp_path, secure=None), masked_grid(tmp_path / "plain"), 1)


def test_a_cohort_below_the_least_is_void(tmp_path: Path) -> None:
    strategy, grid = masked_strategy(tmp_path, sampler=fv.Uniform(2)), masked_grid(tmp_path)
    run(strategy, grid, 1)
    assert "is one of 2, and 3 is the least" in next(iter(strategy.records[-1]["lost"].values()))


# -- members -----------------------------------------------------------------------------------------------------------------


def test_who_is_expelled_leaves_a_masked_sum_of_those_who_stay(tmp_path: Path) -> None:
    """lam is theirs to the last grain, and the run goes on to their minimiser. Not before the nodes know of it."""
    problem, grid = quadratic(CLIENTS), masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path, work=fv.Steps(8), audit_every=0, weights="samples")
    run(strategy, grid, 3)
    grid.nodes[101].wipe()
    grid.offline.add(101)
    said = CliRunner().invoke(main, ["federation", "expel", str(tmp_path / "server"), "1"]).output
    assert "once its key has been taken out of every file of peers" in " ".join(said.split())
    run(strategy, grid, 4)
    assert strategy.records[-1]["counted"] == []
    assert strategy.books.members.present.all()  # its key is still pinned: the others do not sum their duals without it
    unpin(grid, 1)
    run(strategy, grid, 60)
    assert strategy.records[4]["left"] == [1]
    assert strategy.records[-1]["counted"] == [0, 2, 3, 4]
    found = strategy.audit(grid)
    assert (found.gap, found.missing) == (0.0, {})
    stay = [0, 2, 3, 4]
    expected = torch.linalg.solve(problem.A[stay].mean(0), problem.b[stay].mean(0))
    assert float((strategy.books.x0 - expected).norm()) < 1e-4


def test_who_joins_changes_no_part_of_the_sum(tmp_path: Path) -> None:
    problem, grid = quadratic(CLIENTS), masked_grid(tmp_path)
    grid.offline.add(104)
    strategy = masked_strategy(tmp_path, clients=4, max_clients=CLIENTS, work=fv.Steps(8), audit_every=0)
    run(strategy, grid, 3)
    grid.offline.clear()
    run(strategy, grid, 60)
    assert strategy.records[3]["joined"] == [4]
    assert Errand.REPORT not in {order.errand for order in grid.sent}
    assert strategy.audit(grid).gap == 0.0
    assert float((strategy.books.x0 - minimiser(problem)).norm()) < 1e-4
