"""Somebody with a grudge, in memory: messages meant to end the server, to take another's place, or to spoil the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedvra as fv
from fedvra.flower import Ledger, Strategy
from fedvra.flower.protocol import (
    ARRAYS,
    CONFIG,
    Answer,
    BadMessageError,
    Errand,
    Order,
    pack,
    read_array,
    to_array,
    unpack_answer,
)
from fedvra.flower.uploads import RefusedUploadError, checked_upload
from flower_grid import FakeGrid, make_nodes, quadratic

TICKET = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.roster.POLL_SECONDS", 0.0)


def make_strategy(folder: Path, **options: Any) -> Strategy:
    given: dict[str, Any] = {
        "problem": quadratic(),
        "clients": 3,
        "sampler": fv.Full(),
        "work": fv.Steps(3),
        "lr": 0.05,
        "folder": folder / "server",
        "wait": 0,
        **options,
    }
    return Strategy(fv.FedVRA(gamma=0.5, a=2), **given)


# -- messages that must not end the server ----------------------------------------------------------------------------------


def with_header(text: bytes, data: bytes = bytes(32)) -> Array:
    header = text + b"\n"
    return Array(
        "float64", (4,), "numpy.ndarray", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data
    )


HEADERS = {
    "quotes": b"'''abc",
    "brackets": b"[" * 60000,
    "sum": b"1" + b"+1" * 20000,
    "power": b"{'descr': '<f8', 'fortran_order': False, 'shape': (9**9**9,), }",
    "negative": b"{'descr': '<f8', 'fortran_order': False, 'shape': (-4,), }",
    "many": b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,), }",
    "object": b"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "fields": b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (4,), }",
    "nothing": b"",
    "null": b"\0" * 100,
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_the_one_expected_is_not_read(name: str) -> None:
    with pytest.raises(BadMessageError, match="not a vector of numbers"):
        read_array(with_header(HEADERS[name]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 100003])
def test_every_vector_numpy_writes_is_read(dtype: Any, count: int) -> None:
    values = (np.arange(count) % 100).astype(dtype)
    np.testing.assert_array_equal(read_array(Array(values)).numpy(), values)


def test_a_vector_far_too_long_is_refused_before_it_is_copied() -> None:
    answer = Answer("done", 0, ticket=TICKET, arrays={"move": Array(np.zeros(100_000))})
    with pytest.raises(RefusedUploadError, match="bytes, expected 288 at most"):
        checked_upload(answer, 0, torch.zeros(4), None, None)


def introduce(folder: Path, **changes: Any) -> tuple[Strategy, FakeGrid]:
    """A federation in which node 101 introduces itself in an unusual way."""
    grid = FakeGrid(make_nodes(quadratic(), folder))

    def tamper(order: Order, reply: Message) -> Message:
        if order.errand != Errand.HELLO or reply.metadata.src_node_id != 101:
            return reply
        return Message(pack(replace(unpack_answer(reply.content), **changes)), reply_to=as_order(order, reply))

    grid.tamper = tamper
    return make_strategy(folder), grid


def as_order(order: Order, reply: Message) -> Message:
    """A message that a reply to will count as the reply to the one this was a reply to."""
    message = Message(pack(order), reply.metadata.src_node_id, "train")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


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


def test_a_reply_that_never_comes_holds_up_no_other(tmp_path: Path) -> None:
    """Announced, and its contents not sent: Flower would wait for two hours."""
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: "stuck" if o.errand == Errand.TRAIN and o.client == 0 and o.round == 1 else ""
    strategy = make_strategy(tmp_path)
    started = time.monotonic()
    strategy.start(grid, num_rounds=3, timeout=0.5)
    assert time.monotonic() - started < 5
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [1, 2], [0, 1, 2]]
    assert strategy.audit(grid).relative < 1e-12


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=40),
    st.sampled_from(["done", "lost", "stale", "refused", "", TICKET, "x" * 5000, "a\nb\x1b[0m", "../../etc"]),
    st.booleans(),
    st.binary(max_size=20),
    st.lists(st.integers(-5, 5), max_size=3),
)
names = st.sampled_from([*Answer.__dataclass_fields__, "more"])
edits = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("add"), st.integers(0, 500), st.integers(0, 255)),
    st.tuples(st.just("header"), st.sampled_from(range(len(HEADERS))), st.just(0)),
    st.tuples(st.just("number"), st.integers(0, 3), st.sampled_from([math.nan, math.inf, -1e308, 3e38, 1e200, -1e12])),
)
MUTATIONS = st.one_of(
    st.tuples(st.just("scalar"), names, scalars),
    st.tuples(st.just("without"), names, st.none()),
    st.tuples(st.just("array"), st.sampled_from(["move", "lam", "aux", "x0", "\n" * 3000]), edits),
    st.tuples(st.just("record"), st.sampled_from([ARRAYS, CONFIG]), st.sampled_from(["drop", "swap", "empty"])),
)


def mutate(content: RecordDict, what: str, name: str, how: Any) -> RecordDict:
    """A copy of a message's records with one thing about them changed."""
    config, arrays = dict(content[CONFIG]), dict(content[ARRAYS])
    if what == "scalar":
        config[name] = how
    elif what == "without":
        config.pop(name, None)
    elif what == "array":
        old = arrays.get(name) or arrays.get("move") or to_array(torch.zeros(4, dtype=torch.float64))
        arrays[name] = edited(old, *how)
    made: dict[str, Any] = {CONFIG: ConfigRecord(config), ARRAYS: ArrayRecord(arrays)}
    if what == "record":
        kinds: dict[str, Any] = {CONFIG: ConfigRecord(), ARRAYS: ArrayRecord()}
        if how == "drop":
            del made[name]
        else:
            made[name] = MetricRecord({"x": 1}) if how == "swap" else kinds[name]
    return RecordDict(made)


def edited(array: Array, what: str, where: int, value: float) -> Array:
    data = bytearray(array.data or b"-")
    if what == "flip":
        data[where % len(data)] ^= int(value) or 1
    elif what == "cut":
        del data[where % len(data) :]
    elif what == "add":
        data += bytes([int(value)]) * (where + 1)
    elif what == "header":
        return with_header(list(HEADERS.values())[where])
    else:
        data[-32 + 8 * where : -24 + 8 * where or None] = np.float64(value).tobytes()
    return Array(array.dtype, array.shape, array.stype, bytes(data))


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
    try:
        upload = checked_upload(unpack_answer(content), 1, torch.zeros(4, dtype=torch.float64), None, None)
    except (BadMessageError, RefusedUploadError) as error:
        reason = str(error)
    else:
        reason = ""
        assert upload.move.shape == (4,)
        assert float(upload.move.norm()) <= 1e9
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
    left = list(mutations)

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


def replaced(change: Callable[[torch.Tensor], torch.Tensor], client: int, round: int) -> Any:
    """Another vector in place of the one a client uploads in a round; the client knows nothing of it."""

    def tamper(order: Order, reply: Message) -> Message:
        if order.errand != Errand.TRAIN or (order.client, order.round) != (client, round):
            return reply
        answer = unpack_answer(reply.content)
        other = {"move": to_array(change(read_array(answer.arrays["move"])))}
        return Message(pack(replace(answer, arrays=other)), reply_to=as_order(order, reply))

    return tamper


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
