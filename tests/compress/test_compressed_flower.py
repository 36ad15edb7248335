"""Compressed messages on Flower: the simulator's numbers, messages of the length that was counted, and none that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

import fedvra as fv
from fedvra.flower import Strategy, client_app
from fedvra.flower.protocol import ARRAYS, Order, to_array
from flower_grid import FakeGrid, Node
from quadratics import quadratic

N, P, ROUNDS = 6, 40, 8


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvra.flower.roster.PAUSE", 0.001, raising=False)


def costs() -> fv.Quadratic:
    A, b = quadratic(N=N, P=P)
    return fv.Quadratic(torch.from_numpy(A), torch.from_numpy(b))


def grid(folder: Path, **options: Any) -> FakeGrid:
    app = client_app(problem=costs())
    return FakeGrid({100 + i: Node(i, folder / f"node{i}", app) for i in range(N)}, **options)


def play(algorithm: fv.Algorithm, folder: Path, found: FakeGrid, rounds: int = ROUNDS, **options: Any) -> Strategy:
    strategy = Strategy(
        algorithm,
        problem=costs(),
        clients=N,
        sampler=fv.Uniform(4),
        work=fv.Steps(3),
        lr=0.05,
        folder=folder / "server",
        wait=0,
        **options,
    )
    strategy.start(found, num_rounds=rounds, timeout=1)
    return strategy


@pytest.mark.parametrize("down", [None, "int8", "quantize:8"])
@pytest.mark.parametrize("compress", ["quantize:2", "topk:0.1+quantize:4", "topk:0.02", "bfloat16"])
@pytest.mark.parametrize("algorithm", [fv.FedVRA(), fv.FedAvg(), fv.Scaffold()], ids=lambda a: a.name)
def test_the_simulators_x0(algorithm: fv.Algorithm, compress: str, down: str | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"compress": compress, "compress_down": down}
    strategy = play(algorithm, tmp_path, grid(tmp_path), **options)
    history = fv.simulate(
        algorithm,
        problem=costs(),
        sampler=fv.Uniform(4),
        work=fv.Steps(3),
        lr=0.05,
        rounds=ROUNDS,
        workers=1,
        progress=False,
        **options,
    )
    assert torch.allclose(strategy.books.x0, history.x0, rtol=0, atol=1e-13)
    assert torch.allclose(strategy.books.lam, history.lam, rtol=0, atol=1e-13)


@pytest.mark.parametrize("algorithm", [fv.FedVRA(), fv.Scaffold()], ids=lambda a: a.name)
def test_the_clients_duals_add_up_though_replies_are_lost(algorithm: fv.Algorithm, tmp_path: Path) -> None:
    found = grid(tmp_path, fault=lambda order: "silent" if order.errand == "train" and order.number % 3 == 0 else "")
    strategy = play(algorithm, tmp_path, found, compress="quantize:2", compress_down="int8", shadow=True)
    found.fault = lambda order: ""
    audit = strategy.audit(found)
    assert any(record["lost"] for record in strategy.records)
    assert not audit.missing
    assert not audit.differ
    assert audit.gap < 1e-14 * max(1.0, audit.scale)


@pytest.mark.parametrize("fault", ["silent", "late"])
def test_a_residual_is_rolled_back_with_the_reply_that_was_lost(fault: str, tmp_path: Path) -> None:
    """FedAvg's clients keep one: the run goes on as the simulator's in which those who were not heard were not asked."""
    found = grid(tmp_path, fault=lambda order: fault if order.errand == "train" and order.number % 3 == 0 else "")
    strategy = play(fv.FedAvg(), tmp_path, found, compress="topk:0.1+quantize:2")
    counted = [record["counted"] for record in strategy.records]
    assert any(record["lost"] for record in strategy.records)
    assert all(counted)
    history = fv.simulate(
        fv.FedAvg(),
        problem=costs(),
        sampler=fv.Replay(counted),
        work=fv.Steps(3),
        lr=0.05,
        rounds=ROUNDS,
        workers=1,
        progress=False,
        compress="topk:0.1+quantize:2",
    )
    assert torch.allclose(strategy.books.x0, history.x0, rtol=0, atol=1e-13)


def test_messages_are_as_long_as_the_records_of_a_run_say(tmp_path: Path) -> None:
    lengths = []

    def look(order: Order, reply: Message) -> Message:
        if order.errand == "train":
            lengths.append((order.arrays["x0"].numel(), len(reply.content[ARRAYS]["move"].data)))
        return reply

    play(fv.FedVRA(), tmp_path, grid(tmp_path, tamper=look), rounds=1, compress="quantize:2", compress_down="int8")
    header = 128  # of NumPy's format
    assert lengths == [(P + 8, header + P * 2 // 8 + 8)] * 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda move: move[:-1], "bytes, expected"),
        (lambda move: torch.zeros(P, dtype=torch.float64), "expected the bytes of"),
        (lambda move: torch.cat([move[:-8], torch.full((8,), 255, dtype=torch.uint8)]), "NaN"),
    ],
)
def test_bytes_that_nobody_can_have_sent_are_refused(wrong: Any, words: str, tmp_path: Path) -> None:
    def tamper(order: Order, reply: Message) -> Message:
        if order.errand == "train":
            arrays = reply.content[ARRAYS]
            length = P * 2 // 8 + 8
            move = torch.frombuffer(bytearray(arrays["move"].data[-length:]), dtype=torch.uint8)
            arrays["move"] = to_array(wrong(move))
        return reply

    strategy = play(fv.FedVRA(), tmp_path, grid(tmp_path, tamper=tamper), rounds=1, compress="quantize:2")
    assert strategy.records[0]["counted"] == []
    assert all(words in why for why in strategy.records[0]["lost"].values())
