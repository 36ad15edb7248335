"""Real processes on loopback: a SuperLink, SuperNodes that hold a shard each, and whatever may go wrong with them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedvra as fv
from benchmark_scripts import benchmark
from fedvra.flower import Strategy, client_app, server_books
from fedvra.flower.protocol import Errand, Order
from flower_grid import FakeGrid, Node
from flower_shards import CLIENTS, IMPOSTOR, Shards, algorithm, all_data, problem, relative, settings, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    yield from start(tmp_path_factory.mktemp("secure"), secure=True)


def test_x0_is_the_simulators_over_tls_with_authenticated_nodes(secure: Shards) -> None:
    log = secure.play(**{"rounds": 3, "cohort": 2, "audit-from": 3})
    assert [record["round"] for record in secure.records()] == [1, 2, 3], log
    expected = fv.simulate(algorithm(), data=all_data(), rounds=3, workers=1, **settings(cohort=2))
    state = secure.server_state()
    assert [record["cohort"] for record in secure.records()] == [m["cohort"] for m in expected.metrics]
    assert relative(state.x0, expected.x0) < 1e-6
    assert relative(state.lam, expected.lam) < 1e-6
    assert secure.records()[-1]["audit"]["missing"] == {}
    assert secure.records()[-1]["relative"] < 1e-6
    assert sorted(state.keys) == list(range(CLIENTS))
    assert len(set(state.keys.values())) == CLIENTS


def test_another_key_does_not_get_a_client_number_that_is_taken(secure: Shards) -> None:
    """Not even while its owner is away; the log says who tried."""
    rounds = secure.server_state().round + 1
    secure.stop_node(1)
    secure.register(IMPOSTOR)
    secure.bring(IMPOSTOR)
    try:
        log = secure.play(rounds=rounds)
    finally:
        secure.stop_node(IMPOSTOR)
        secure.start_node(1)
    assert "(client 1) is refused: client 1 belongs to the key" in log
    assert secure.records()[-1]["counted"] == [0, 2]
    assert not secure.ledger(IMPOSTOR).exists()  # no lambda was ever sent to it


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    yield from start(tmp_path_factory.mktemp("faulty"), secure=False)


FAULTS = {
    (1, 2): "dies",
    (2, 2): "straggles",
    (0, 3): "wiped",
    (1, 3): "nan",
    (2, 3): "raises",
}
"""(client, round) -> what happens to it."""
REASONS = {
    "dies": "",
    "straggles": "did not answer in time",
    "wiped": "lost its state",
    "nan": "NaN or infinity",
    "raises": "fails after its local work",
}


def test_clients_that_fail_leave_the_duals_exact(faulty: Shards) -> None:
    for (client, number), fault in FAULTS.items():
        (faulty.folder / "faults" / f"{client}-{number}").write_text(fault)
    log = faulty.play(**{"rounds": 4, "impatient": 90.0, "audit-from": 2})
    records = faulty.records()
    assert [record["round"] for record in records] == [1, 2, 3, 4], log
    assert len(list((faulty.folder / "faults").glob("*-happened"))) == len(FAULTS)
    for (client, number), fault in FAULTS.items():
        assert client not in records[number - 1]["counted"], fault
        assert REASONS[fault] in records[number - 1]["lost"][str(client)]
    assert list(records[2]["audit"]["missing"]) == ["0"]  # the wiped client has nothing to report until it is repaired
    assert records[3]["counted"] == [0, 1, 2]
    for record in (records[1], records[3]):
        assert record["audit"]["missing"] == {}
        assert record["relative"] < 1e-6


def test_a_server_that_is_killed_and_a_node_that_is_restarted_leave_the_duals_exact(faulty: Shards) -> None:
    faulty.play_until_death(rounds=5, die="before:5")
    assert faulty.server_state().round == 4
    faulty.stop_node(1)
    faulty.bring(1)
    faulty.play_until_death(rounds=5, die="after:5")
    assert faulty.server_state().round == 5
    assert len(faulty.records()) == 4  # neither lived to write its record
    log = faulty.play(**{"rounds": 6, "audit-from": 6})
    last = faulty.records()[-1]
    assert (last["round"], last["counted"]) == (6, [0, 1, 2]), log
    assert last["audit"]["missing"] == {}
    assert last["relative"] < 1e-6


def test_the_faults_changed_nothing_but_who_was_counted(faulty: Shards, tmp_path: Path) -> None:
    """The same rounds in memory, with the same replies counted, end in the same x0."""
    counted = {record["round"] - 1: record["counted"] for record in faulty.records()}
    data = all_data()
    nodes = {100 + i: Node(i, tmp_path / f"node{i}", client_app(problem=problem, data=data)) for i in range(CLIENTS)}

    def fault(order: Order) -> str:
        everybody = list(range(CLIENTS))
        return (
            "unsent" if order.errand == Errand.TRAIN and order.client not in counted.get(order.round, everybody) else ""
        )

    strategy = Strategy(algorithm(), clients=CLIENTS, folder=tmp_path / "books", wait=0, **settings())
    grid, strategy.timeout = FakeGrid(nodes, fault), 0.01
    strategy.open(grid)
    while strategy.books.round < 6:  # the void round among them
        strategy.play(grid)
    state = faulty.server_state()
    assert relative(state.x0, strategy.books.x0) < 1e-6
    assert relative(state.lam, strategy.books.lam) < 1e-6


def test_the_demo_runs_and_stops_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedvra", "federation", "demo", "--nodes", "2", "--rounds", "2", "--tls"]
    shown = subprocess.run([*command, "--out", tmp_path / "demo"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "round 2 of 2: 2 of 2 nodes counted" in shown.stdout
    assert len(benchmark("federation_rounds").later_rounds(shown.stdout.splitlines())) == 1
    gap = re.search(r"audit: .* is (\S+) of", shown.stdout)
    assert gap is not None
    assert float(gap[1]) < 1e-6
    port = re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "demo" / "flwr" / "config.toml").read_text())
    assert port is not None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0  # nobody listens any more


def test_the_demo_with_masked_sums_has_a_gap_of_zero(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedvra", "federation", "demo", "--nodes", "3", "--rounds", "2", "--masked"]
    shown = subprocess.run([*command, "--out", tmp_path / "demo"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "round 2 of 2: 3 of 3 nodes counted" in shown.stdout
    assert "is 0.0e+00 of |lam|" in shown.stdout
    books = server_books.Books.read(tmp_path / "demo" / "books")
    assert books is not None
    assert books.whole is not None
    assert bool(books.whole.any())
