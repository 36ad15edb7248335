"""The strategy against clients in memory: equal to the simulator, and exact under every fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedvra as fv
import fedvra.flower
from fedvra.flower import Ledger, LocalWork, Strategy, node
from fedvra.flower.client_ledger import Page, Stamp
from fedvra.flower.protocol import CONFIG, Errand, Order
from flower_grid import FakeGrid, Node, make_nodes, quadratic

ETA, ROUNDS = 0.05, 6


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power cut is tested here, and nobody answers later than at once."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def make_strategy(folder: Path, algorithm: fv.Algorithm | None = None, **options: Any) -> Strategy:
    given: dict[str, Any] = {
        "problem": quadratic(),
        "clients": 3,
        "sampler": fv.Full(),
        "work": fv.Steps(3),
        "lr": ETA,
        "folder": folder / "server",
        "wait": 0,
        **options,
    }
    return Strategy(algorithm or fv.FedVRA(gamma=0.5, a=2), **given)


def run(strategy: Strategy, grid: FakeGrid, rounds: int = ROUNDS, timeout: float = 0.01) -> None:
    strategy.start(grid, num_rounds=rounds, timeout=timeout)


ALGORITHMS = [
    fv.FedAvg(),
    fv.FedProx(mu=0.1),
    fv.FedNova(),
    fv.Scaffold(),
    fv.VRLSGD(),
    fv.FedADMM(gamma=0.5),
    fv.FedPD(gamma=0.5),
    fv.FedDyn(alpha=0.5),
    fv.FedVRA(gamma=0.5, a=2),
    fv.FedVRA(),
    fv.FedVRAU(gamma=0.5, a=2),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_gives_the_simulators_x0(algorithm: fv.Algorithm, tmp_path: Path) -> None:
    sampler = fv.Full() if algorithm.everyone_takes_part else fv.Uniform(2)
    options = {"sampler": sampler, "work": fv.Steps(3), "lr": ETA, "weights": [1, 2, 3]}
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy = make_strategy(tmp_path, algorithm, **options)
    run(strategy, grid)
    expected = fv.simulate(algorithm, problem=quadratic(), rounds=ROUNDS, workers=1, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(strategy.books.lam, expected.lam, rtol=1e-12, atol=1e-14)
    assert strategy.audit(grid).relative < 1e-12
    assert strategy.audit(grid).missing == {}


FAULTS = ["unsent", "silent", "raises", "late", "twice"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("algorithm", [fv.FedVRA(gamma=0.5, a=2), fv.Scaffold()], ids=lambda a: a.name)
def test_a_fault_leaves_the_duals_exact(fault: str, algorithm: fv.Algorithm, tmp_path: Path) -> None:
    """Client 1 fails in rounds 2 and 3; without the protocol the gap would be there for good (see test_naive)."""
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: fault if o.errand == Errand.TRAIN and o.client == 1 and o.round in (1, 2) else ""
    strategy = make_strategy(tmp_path, algorithm)
    run(strategy, grid)
    lost = [] if fault == "twice" else [2, 3]
    assert [record["round"] for record in strategy.records if 1 in record["lost"]] == lost
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    assert strategy.books.lam.norm() > 0.01
    assert strategy.audit(grid).relative < 1e-12


# -- what the protocol is for ------------------------------------------------------------------------------------------------


class NaiveLedger(Ledger):
    """What a client does that keeps its newest dual whatever became of the upload (as Flower's Context.state would)."""

    def settle(self, counted: str, stamp: Stamp, restore: Mapping[str, Tensor] | None = None) -> None:
        newest = self.page.pending or self.page.committed
        self._turn_to(Page(newest, None, stamp))


@pytest.mark.parametrize("fault", ["silent", "raises", "late"])
def test_the_naive_variant_breaks_for_good(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "Ledger", NaiveLedger)
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: fault if o.errand == Errand.TRAIN and o.client == 1 and o.round == 1 else ""
    strategy = make_strategy(tmp_path)
    run(strategy, grid, rounds=20)
    assert strategy.audit(grid).relative > 0.01
    x_star = quadratic().minimiser()
    assert (strategy.books.x0 - x_star).norm() > 1e-3  # and it converges, but elsewhere


def test_with_the_protocol_it_still_converges_to_the_minimiser(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: "silent" if o.errand == Errand.TRAIN and o.client == 1 and o.round in (1, 5, 9) else ""
    strategy = make_strategy(tmp_path, fv.FedVRA(gamma=1.0, a=1), work=fv.Steps(5))
    run(strategy, grid, rounds=150)
    assert (strategy.books.x0 - quadratic().minimiser()).norm() < 1e-6


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(
        st.tuples(*[st.sampled_from(["", "", "unsent", "silent", "raises", "late", "twice", "wiped"])] * 3),
        min_size=1,
        max_size=7,
    ),
    deaths=st.lists(st.sampled_from(["", "", "before", "after"]), min_size=7, max_size=7),
    shadow=st.booleans(),
    algorithm=st.sampled_from([fv.FedVRA(gamma=0.5, a=2), fv.Scaffold(), fv.FedDyn(alpha=0.5)]),
)
def test_no_sequence_of_faults_breaks_the_invariant(
    faults: list[tuple[str, ...]], deaths: list[str], shadow: bool, algorithm: fv.Algorithm, tmp_path_factory: Any
) -> None:
    """Replies lost, late and doubled, disks wiped, the server dead before and after its checkpoint, in any order."""
    folder = tmp_path_factory.mktemp("faults")
    grid = FakeGrid(make_nodes(quadratic(), folder))

    def fault(order: Order) -> str:
        if order.errand != Errand.TRAIN or order.round >= len(faults):
            return ""
        what = faults[order.round][order.client]
        if what == "wiped":
            grid.nodes[100 + order.client].wipe()
            return ""
        return what

    grid.fault = fault
    strategy = reopened(None, folder, grid, algorithm, shadow)
    while strategy.books.round < len(faults):
        death = deaths[strategy.books.round]
        deaths[strategy.books.round] = ""
        if death == "before":
            strategy.save = lambda: _die()  # type: ignore[method-assign]
        with suppress(Died):
            strategy.play(grid)
        if death:
            strategy = reopened(strategy, folder, grid, algorithm, shadow)
    for _ in range(3):  # a lost dual is detected in one round, restored in the next
        strategy.play(grid)
    found = strategy.audit(grid)
    assert found.missing == {}
    assert found.gap <= 1e-10 * max(1.0, found.norm)
    assert strategy.records[-1]["counted"] == [0, 1, 2]


class Died(BaseException):
    pass


def _die() -> None:
    raise Died


def reopened(dead: Strategy | None, folder: Path, grid: FakeGrid, algorithm: fv.Algorithm, shadow: bool) -> Strategy:
    """A new server on the books of the old one."""
    strategy = make_strategy(folder, algorithm, shadow=shadow)
    strategy.timeout = 0.001
    strategy.open(grid)
    return strategy


# -- restarts and repairs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_server_that_dies_around_its_checkpoint_changes_nothing(when: str, tmp_path: Path) -> None:
    whole = make_strategy(tmp_path / "whole")
    run(whole, FakeGrid(make_nodes(quadratic(), tmp_path / "whole")))
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    first = make_strategy(tmp_path)
    run(first, grid, rounds=2)
    if when == "before":
        first.save = lambda: _die()  # type: ignore[method-assign]
    with suppress(Died):
        first.play(grid)
    second = make_strategy(tmp_path)
    run(second, grid)
    played = [order.round + 1 for order in grid.sent if order.errand == Errand.TRAIN and order.client == 0]
    assert played == ([1, 2, 3, 3, 4, 5, 6] if when == "before" else [1, 2, 3, 4, 5, 6])
    assert [record["round"] for record in second.records] == [1, 2, 3, 4, 5, 6]
    assert all(record["counted"] == [0, 1, 2] for record in second.records)
    torch.testing.assert_close(second.books.x0, whole.books.x0, rtol=0, atol=0)
    torch.testing.assert_close(second.books.lam, whole.books.lam, rtol=0, atol=0)
    assert second.audit(grid).relative < 1e-12


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("wiped", [[1], [0, 2], [0, 1, 2]])
def test_lost_duals_are_detected_and_restored(shadow: bool, wiped: list[int], tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy = make_strategy(tmp_path, shadow=shadow)
    run(strategy, grid, rounds=3)
    before = [Ledger.of(tmp_path / f"node{i}", strategy.books.experiment, i) for i in range(3)]
    for i in wiped:
        grid.nodes[100 + i].wipe()
    strategy.play(grid)
    assert sorted(strategy.records[-1]["lost"]) == wiped
    assert "lost its state" in strategy.records[-1]["lost"][wiped[0]]
    strategy.play(grid)
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    audit = strategy.audit(grid)
    assert audit.missing == {}
    assert audit.relative < 1e-12
    assert before[wiped[0]].page.committed.ticket not in strategy.books.tickets.values()


@pytest.mark.parametrize("shadow", [False, True])
def test_one_lost_dual_comes_back_as_it_was(shadow: bool, tmp_path: Path) -> None:
    """So the run is that of a federation in which the client had merely been silent for a round."""

    def play(folder: Path, wiped: bool) -> Strategy:
        grid = FakeGrid(make_nodes(quadratic(), folder))
        strategy = make_strategy(folder, shadow=shadow)
        run(strategy, grid, rounds=3)
        if wiped:
            grid.nodes[101].wipe()
        else:
            grid.fault = lambda o: "silent" if o.client == 1 and o.round == 3 else ""
        run(strategy, grid, rounds=6)
        return strategy

    lost, silent = play(tmp_path / "lost", wiped=True), play(tmp_path / "silent", wiped=False)
    assert [r["counted"] for r in lost.records] == [r["counted"] for r in silent.records]
    torch.testing.assert_close(lost.books.x0, silent.books.x0, rtol=0 if shadow else 1e-12, atol=0 if shadow else 1e-13)


def test_a_repair_waits_for_those_it_needs(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy = make_strategy(tmp_path)
    run(strategy, grid, rounds=3)
    grid.nodes[101].wipe()
    strategy.play(grid)
    grid.offline = {102}
    strategy.play(grid)
    assert strategy.records[-1]["lost"] == {1: "awaits repair", 2: "is not connected"}
    grid.offline = set()
    strategy.play(grid)
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    assert strategy.audit(grid).relative < 1e-12


@pytest.mark.parametrize("bound", [True, False])
def test_a_restarted_node_is_known_by_its_client_number_and_its_loss_is_seen_at_once(
    bound: bool, tmp_path: Path
) -> None:
    """By its key where nodes are authenticated; without, it comes back with another."""
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.nodes[101].key = b"its own" if bound else b""
    strategy = make_strategy(tmp_path, bind_keys=bound)
    run(strategy, grid, rounds=2)
    grid.nodes[777] = grid.nodes.pop(101)  # the same client under a new node number
    grid.nodes[777].wipe()
    strategy.play(grid)
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    assert strategy.audit(grid).relative < 1e-12


# -- the rest ---------------------------------------------------------------------------------------------------------------


def test_the_server_waits_for_all_clients_before_the_first_round(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path), offline={101})
    with pytest.raises(fv.FedvraError, match=r"2 of 3 clients are connected \(missing: 1\)"):
        run(make_strategy(tmp_path), grid)


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    run(make_strategy(tmp_path), grid, rounds=1)
    with pytest.raises(fv.UsageError, match="another experiment"):
        run(make_strategy(tmp_path, seed=1), grid)


def test_methods_for_everybody_play_no_round_without_somebody(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: "silent" if o.errand == Errand.TRAIN and o.client == 1 and o.round == 1 else ""
    strategy = make_strategy(tmp_path, fv.VRLSGD())
    run(strategy, grid, rounds=3)
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [], [0, 1, 2], [0, 1, 2]]
    assert strategy.audit(grid).relative < 1e-12


def test_rounds_without_communication_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fv.UsageError, match="set skip to 0"):
        run(make_strategy(tmp_path, fv.FedPD(skip=0.9)), FakeGrid(make_nodes(quadratic(), tmp_path)))


def test_the_clients_are_asked_for_their_losses_where_the_sampler_wants_them(tmp_path: Path) -> None:
    options = {"sampler": fv.PowerOfChoice(1, candidates=3), "work": fv.Steps(3), "lr": ETA}
    strategy = make_strategy(tmp_path, **options)
    run(strategy, FakeGrid(make_nodes(quadratic(), tmp_path)))
    expected = fv.simulate(fv.FedVRA(gamma=0.5, a=2), problem=quadratic(), rounds=ROUNDS, workers=1, **options)
    assert [record["cohort"] for record in strategy.records] == [m["cohort"] for m in expected.metrics]
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12)


def test_steps_by_hand_are_the_librarys_own(tmp_path: Path) -> None:
    problem, app = quadratic(), ClientApp()

    @app.train()
    @fedvra.flower.client(problem=problem)
    def train(work: LocalWork) -> Tensor:
        x = work.x0
        for _ in range(work.steps):
            x = work.step(x, problem.A[work.client] @ x - problem.b[work.client])
        return x - work.x0

    strategy = make_strategy(tmp_path)
    run(strategy, FakeGrid(make_nodes(problem, tmp_path, app)))
    expected = fv.simulate(
        fv.FedVRA(gamma=0.5, a=2),
        problem=problem,
        sampler=fv.Full(),
        work=fv.Steps(3),
        lr=ETA,
        rounds=ROUNDS,
        workers=1,
    )
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-10)


def test_flower_is_needed_only_by_those_who_use_it() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "import fedvra, fedvra.flower\n"
        "fedvra.FedVRA()\n"
        "try:\n    fedvra.flower.Strategy\n"
        "except fedvra.UsageError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fedvra.flower needs Flower, which is not installed: pip install 'fedvra[flower]'.\n"


def test_a_cohort_without_weight_leaves_the_books_as_they_were(tmp_path: Path) -> None:
    options = {"sampler": fv.Replay([[1, 2], [0]]), "weights": [0, 1, 1]}
    strategy = make_strategy(tmp_path, fv.FedAvg(), **options)
    with pytest.raises(fv.UsageError, match="weights that sum to zero"):
        run(strategy, FakeGrid(make_nodes(quadratic(), tmp_path)), rounds=2)
    one = fv.simulate(fv.FedAvg(), problem=quadratic(), work=fv.Steps(3), lr=ETA, rounds=1, workers=1, **options)
    np.testing.assert_allclose(strategy.books.x0, one.x0, rtol=1e-12, atol=1e-14)


# -- local optimisers -------------------------------------------------------------------------------------------------------

RMS = fv.Torch(torch.optim.RMSprop)
OPTIMISERS = [
    (fv.Scaffold(), fv.SGD(momentum=0.9, clip=2.0)),
    (fv.FedNova(), fv.SGD(momentum=0.5, nesterov=True, cosine=True)),
    (fv.FedDyn(alpha=0.5), fv.Adam(beta2=0.99)),
    (fv.FedAvg(), RMS),
]


@pytest.mark.parametrize(("algorithm", "local"), OPTIMISERS, ids=str)
def test_nodes_step_by_the_optimiser_that_the_order_names(algorithm: fv.Algorithm, local: Any, tmp_path: Path) -> None:
    """Also after a restart of the server halfway: nothing of an optimiser lasts longer than a round."""
    options: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Steps([1, 3, 5]), "lr": ETA, "local": local}
    app = node.client_app(problem=quadratic(), local=RMS)
    grid = FakeGrid(make_nodes(quadratic(), tmp_path, app))
    for rounds in (3, ROUNDS):
        strategy = make_strategy(tmp_path, algorithm, **options)
        run(strategy, grid, rounds)
    assert {order.local for order in grid.sent if order.errand == Errand.TRAIN} == {local.text()}
    expected = fv.simulate(algorithm, problem=quadratic(), rounds=ROUNDS, workers=1, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12, atol=1e-14)
    assert strategy.audit(grid).relative < 1e-12


def test_an_optimiser_made_by_a_function_must_be_there_at_the_node(tmp_path: Path) -> None:
    strategy = make_strategy(tmp_path, fv.FedAvg(), local=RMS)
    run(strategy, FakeGrid(make_nodes(quadratic(), tmp_path)), rounds=1)
    assert "give this client the same" in strategy.records[-1]["lost"][0]


def test_what_has_no_meaning_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(fv.UsageError, match="SCAFFOLD does not go with adam"):
        make_strategy(tmp_path, fv.Scaffold(), local=fv.Adam())


# -- training loops of the clients' own ---------------------------------------------------------------------------------------


def steps_by_hand(work: LocalWork, steps: int) -> Tensor:
    problem, x = quadratic(), work.x0.clone()
    for _ in range(steps):
        x = work.step(x, problem.A[work.client] @ x - problem.b[work.client])
    return x - work.x0


def own_app(steps: Callable[[LocalWork], int]) -> ClientApp:
    app = ClientApp()

    @app.train()
    @node.client(problem=quadratic())
    def train(work: LocalWork) -> Tensor:
        return steps_by_hand(work, steps(work))

    return app


@pytest.mark.parametrize("algorithm", [fv.FedNova(), fv.Scaffold(), fv.FedVRA(gamma=0.5, a=2), fv.FedVRA()], ids=repr)
@pytest.mark.parametrize("shadow", [False, True], ids=["alone", "with a shadow"])
def test_what_a_loop_did_is_in_its_reply_and_both_sides_go_by_it(
    algorithm: fv.Algorithm, shadow: bool, tmp_path: Path
) -> None:
    """Clients that do 1 + i + r steps of their own accord: as the simulator with the same loop, and lam is exact."""

    def wanted(work: LocalWork) -> int:
        return 1 + work.client + work.round

    options: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Steps(5), "lr": ETA}
    grid = FakeGrid(make_nodes(quadratic(), tmp_path, own_app(wanted)))
    strategy = make_strategy(tmp_path, algorithm, local=fv.Loop(), shadow=shadow, **options)
    run(strategy, grid)
    loop = fv.Loop(lambda work: steps_by_hand(work, wanted(work)))
    expected = fv.simulate(algorithm, problem=quadratic(), rounds=ROUNDS, workers=1, local=loop, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(strategy.books.lam, expected.lam, rtol=1e-12, atol=1e-14)
    assert strategy.audit(grid).relative < 1e-12
    asked = fv.simulate(algorithm, problem=quadratic(), rounds=ROUNDS, workers=1, **options)
    assert float((asked.x0 - expected.x0).norm()) > 1e-3


def test_a_loop_that_does_as_it_likes_is_refused_unless_the_server_counts(tmp_path: Path) -> None:
    strategy = make_strategy(tmp_path, fv.FedNova())
    run(strategy, FakeGrid(make_nodes(quadratic(), tmp_path, own_app(lambda work: 2))), rounds=1)
    assert "took 2 steps" in strategy.records[-1]["lost"][0]
    assert "local=fv.Loop()" in strategy.records[-1]["lost"][0]


@pytest.mark.parametrize(("said", "reason"), [({"carried": 1e-9}, "of the sum"), ({"steps": 0}, "took 0 steps")])
def test_work_that_nobody_does_is_not_believed(said: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Coefficients divide by it: a client that says it hardly moved could make its dual as long as it likes."""

    def tamper(order: Order, reply: Message) -> Message:
        if order.errand == Errand.TRAIN and order.client == 1:
            reply.content[CONFIG].update(said)
        return reply

    grid = FakeGrid(make_nodes(quadratic(), tmp_path, own_app(lambda work: 4)), tamper=tamper)
    strategy = make_strategy(tmp_path, fv.Scaffold(), local=fv.Loop())
    run(strategy, grid, rounds=1)
    assert list(strategy.records[-1]["lost"]) == [1]
    assert reason in strategy.records[-1]["lost"][1]


def test_a_restored_loop_goes_on_where_the_server_stopped(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path, own_app(lambda work: 1 + work.client)))
    for rounds in (2, ROUNDS):
        strategy = make_strategy(tmp_path, fv.Scaffold(), local=fv.Loop())
        run(strategy, grid, rounds)
    loop = fv.Loop(lambda work: steps_by_hand(work, 1 + work.client))
    whole = fv.simulate(
        fv.Scaffold(),
        problem=quadratic(),
        sampler=fv.Full(),
        work=fv.Steps(3),
        lr=ETA,
        rounds=ROUNDS,
        workers=1,
        local=loop,
    )
    np.testing.assert_allclose(strategy.books.x0, whole.x0, rtol=1e-12, atol=1e-14)


def test_a_hooked_loop_on_a_node_is_that_of_the_simulator(tmp_path: Path) -> None:
    """Momentum of the loop's own: alpha = 1/T with the T that its optimiser came to, on both sides."""
    rng = np.random.default_rng(0)
    data = fv.split((rng.normal(size=(60, 4)), rng.integers(0, 3, 60)), fv.IID(), clients=3, seed=0)
    torch.manual_seed(0)
    problem, app = fv.Supervised(torch.nn.Linear(4, 3).double(), weight_decay=1e-2), ClientApp()

    def train(work: LocalWork) -> Tensor:
        model = work.model()
        optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=0.5 * work.eta, momentum=0.8))
        for inputs, targets in list(work.batches())[: 2 + work.client]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return work.move()

    app.train()(node.client(problem=problem, data=data)(train))
    options: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Steps(6), "lr": ETA, "batch_size": 7}
    nodes = {100 + i: Node(i, tmp_path / f"node{i}", app) for i in range(3)}
    strategy = make_strategy(tmp_path, fv.Scaffold(), problem=problem, local=fv.Loop(), **options)
    grid = FakeGrid(nodes)
    run(strategy, grid)
    local = fv.Loop(train)
    expected = fv.simulate(fv.Scaffold(), problem=problem, data=data, rounds=ROUNDS, workers=1, local=local, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(strategy.books.lam, expected.lam, rtol=1e-11, atol=1e-13)
    assert strategy.audit(grid).relative < 1e-12
