"""Uploads that must not count, and messages that are none."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.clientapp import ClientApp

import fedvra as fv
import fedvra.flower
from fedvra.flower import LocalWork, Strategy
from fedvra.flower.protocol import (
    ARRAYS,
    CONFIG,
    Answer,
    BadMessageError,
    Order,
    pack,
    to_array,
    unpack_answer,
    unpack_order,
)
from fedvra.flower.spool import Spool
from fedvra.flower.uploads import RefusedUploadError, checked_upload
from flower_grid import FakeGrid, make_nodes, quadratic

X0 = torch.zeros(4)
TICKET = "0123456789abcdef" * 2


def raw(data: bytes, dtype: str = "float32") -> Array:
    return Array(dtype, (4,), "numpy.ndarray", data)


def npy(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


def upload(**changes: Any) -> Answer:
    given = {"status": "done", "client": 1, "ticket": TICKET, "loss": 0.5, "arrays": {"move": to_array(torch.ones(4))}}
    return Answer(**{**given, **changes})


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path) as made:
        yield made


def test_a_good_upload_passes(spool: Spool) -> None:
    found = checked_upload(upload(), 1, X0, None, 2.0, spool)
    assert found.move.read().tolist() == [1, 1, 1, 1]
    assert (found.ticket, found.loss) == (TICKET, 0.5)


ones = np.ones(4, np.float32)
BAD: dict[str, tuple[Answer, str]] = {
    "another client": (upload(client=2), "client 2"),
    "no ticket": (upload(ticket=""), "no ticket"),
    "bad ticket": (upload(ticket="x"), "not a ticket"),
    "loss": (upload(loss=math.nan), "loss is nan"),
    "nothing": (upload(arrays={}), "missing"),
    "shape": (upload(arrays={"move": to_array(torch.ones(5))}), r"shape \[5\], expected \[4\]"),
    "matrix": (upload(arrays={"move": raw(npy(np.ones((4, 1), np.float32)))}), "not a vector"),
    "dtype": (upload(arrays={"move": to_array(torch.ones(4, dtype=torch.float64))}), "float64, expected torch.float32"),
    "NaN": (upload(arrays={"move": to_array(torch.tensor([1, math.nan, 1, math.inf]))}), "infinity in 2 of 4"),
    "norm": (upload(arrays={"move": to_array(torch.full((4,), 2.0))}), "norm 4, more than the bound 3"),
    "pickle": (upload(arrays={"move": raw(pickle.dumps(ones))}), "not a vector"),
    "objects": (
        upload(arrays={"move": raw(npy(np.array([print] * 4), allow_pickle=True))}),
        "bytes, expected 288 at most",
    ),
    "zip": (upload(arrays={"move": raw(b"PK\x03\x04" + bytes(100))}), "not a vector"),
    "short": (upload(arrays={"move": raw(npy(ones)[:-4])}), "not a vector"),
    "empty": (upload(arrays={"move": raw(b"")}), "not a vector"),
    "strings": (upload(arrays={"move": raw(npy(np.array(["a"] * 4)))}), "not a vector"),
    "a shape that lies": (upload(arrays={"move": raw(npy(ones).replace(b"(4,)", b"(9,)"))}), "not a vector"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused(name: str, spool: Spool) -> None:
    answer, reason = BAD[name]
    with pytest.raises(RefusedUploadError, match=reason):
        checked_upload(answer, 1, X0, None, 3.0, spool)


def test_buffers_are_checked_as_well(spool: Spool) -> None:
    with pytest.raises(RefusedUploadError, match="the buffers: missing"):
        checked_upload(upload(), 1, X0, torch.zeros(2), None, spool)


def test_messages_survive_packing() -> None:
    order = Order("train", TICKET, 3, client=1, steps=4, eta=0.1, arrays={"x0": torch.arange(3.0)})
    found = unpack_order(pack(order))
    assert found.arrays["x0"].tolist() == [0, 1, 2]
    assert (found.eta, found.steps, found.experiment) == (0.1, 4, TICKET)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({CONFIG: ConfigRecord({"status": "done"}), ARRAYS: ArrayRecord()}),
        RecordDict({CONFIG: ConfigRecord({"status": 1, "client": 0}), ARRAYS: ArrayRecord()}),
        pack(upload(reason="x" * 5000)),
    ],
)
def test_records_that_are_no_answer_are_refused(content: RecordDict) -> None:
    with pytest.raises(BadMessageError):
        unpack_answer(content)


@pytest.mark.parametrize(("poison", "reason"), [(math.nan, "NaN"), (math.inf, "NaN or infinity"), (1e6, "norm")])
def test_the_round_goes_on_without_the_one_who_is_refused(poison: float, reason: str, tmp_path: Path) -> None:
    problem, app = quadratic(), ClientApp()

    @app.train()
    @fedvra.flower.client(problem=problem)
    def train(work: LocalWork) -> torch.Tensor:
        return work.solve() * (poison if work.client == 1 and work.round == 1 else 1)

    grid = FakeGrid(make_nodes(problem, tmp_path, app))
    strategy = Strategy(
        fv.FedVRA(gamma=0.5, a=2), problem=problem, clients=3, sampler=fv.Full(), work=fv.Steps(3), lr=0.05,
        folder=tmp_path / "server", wait=0, max_norm=1000.0,
    )  # fmt: skip
    strategy.start(grid, num_rounds=4, timeout=1)
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert reason in strategy.records[1]["lost"][1]
    assert bool(torch.isfinite(strategy.books.x0).all())
    assert strategy.audit(grid).relative < 1e-12
