"""What somebody with a grudge sends: headers that break parsers, messages changed at random, other vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import strategies as st

import fedvra as fv
from fedvra.flower import Strategy
from fedvra.flower.protocol import ARRAYS, CONFIG, Answer, Errand, Order, pack, read_array, to_array, unpack_answer
from flower_grid import quadratic

TICKET = "0123456789abcdef" * 2


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


def as_order(order: Order, reply: Message) -> Message:
    """A message that a reply to will count as the reply to the one this was a reply to."""
    message = Message(pack(order), reply.metadata.src_node_id, "train")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


def replaced(change: Callable[[torch.Tensor], torch.Tensor], client: int, round: int) -> Any:
    """Another vector in place of the one a client uploads in a round; the client knows nothing of it."""

    def tamper(order: Order, reply: Message) -> Message:
        if order.errand != Errand.TRAIN or (order.client, order.round) != (client, round):
            return reply
        answer = unpack_answer(reply.content)
        other = {"move": to_array(change(read_array(answer.arrays["move"])))}
        return Message(pack(replace(answer, arrays=other)), reply_to=as_order(order, reply))

    return tamper


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
