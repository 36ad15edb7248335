"""A server that is killed between the steps of a change of members: after a restart it is as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

import fedvra as fv
from fedvra.flower import MaskedSum, Strategy
from fedvra.flower.members import expel
from fedvra.flower.protocol import CONFIG, Errand, Order
from flower_grid import FakeGrid, make_nodes, quadratic
from flower_masked import pin, unpin

N, FIRST, ROUNDS = 6, 4, 6
GROWS, LEAVES, JOINS = 3, 1, 4


class Died(BaseException):
    pass


def die(*given: Any, **more: Any) -> Any:
    raise Died


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


class Federation:
    """Quadratics on nodes; before the third round one is to leave, one joins and one grows."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.samples = folder, [4, 1, 3, 2, 5, 2]
        self.options: dict[str, Any] = {
            "plain": {},
            "shadow": {"shadow": True},
            "masked": {"secure": MaskedSum()},
        }[mode]
        self.masked = mode == "masked"
        self.grid = FakeGrid(make_nodes(quadratic(N), folder), tamper=self._say)
        if self.masked:
            pin(self.grid.nodes.values(), folder)
        self.grid.offline = {100 + i for i in range(FIRST, N)}
        self.strategy = self.started()
        for _ in range(2):
            self.strategy.play(self.grid)
        self.samples[GROWS] = 9
        self.strategy.play(self.grid)  # it says so with its reply
        expel(folder / "server", LEAVES)
        if self.masked:
            unpin(self.grid, LEAVES)
        self.grid.offline -= {100 + JOINS}

    def _say(self, order: Order, reply: Message) -> Message:
        if order.errand in (Errand.HELLO, Errand.TRAIN) and not reply.has_error():
            config = reply.content[CONFIG]
            config["samples"] = self.samples[int(config["client"])]
        return reply

    def started(self) -> Strategy:
        self.strategy = Strategy(
            fv.FedVRA(gamma=1.0, a=1), problem=quadratic(N), clients=FIRST, max_clients=N, sampler=fv.Full(),
            work=fv.Steps(4), lr=0.1, folder=self.folder / "server", wait=0, audit_every=0, weights="samples", **self.options,
        )  # fmt: skip
        self.strategy.timeout = 0.01
        self.strategy.open(self.grid)
        return self.strategy

    def gap(self) -> float:
        found = self.strategy.audit(self.grid)
        assert found.missing == {}
        return found.gap

    def finish(self) -> Strategy:
        while self.strategy.books.round < ROUNDS:
            self.strategy.play(self.grid)
        return self.strategy


def asked(f: Federation, patch: pytest.MonkeyPatch) -> None:
    """Somebody has reported its dual, and others have not."""
    reports: list[Order] = []

    def fault(order: Order) -> str:
        reports.extend([order] if order.errand == Errand.REPORT else [])
        return die() if len(reports) > 1 or (reports and order.errand != Errand.REPORT) else ""

    patch.setattr(f.grid, "fault", fault)


def unwritten(f: Federation, patch: pytest.MonkeyPatch) -> None:
    """All is known, and nothing on the disk."""
    patch.setattr(f.strategy, "save", die)


def unexported(f: Federation, patch: pytest.MonkeyPatch) -> None:
    """The books are on the disk, and the model is not."""
    patch.setattr("fedvra.flower.strategy.export_model", die)


def written(f: Federation, patch: pytest.MonkeyPatch) -> None:
    """All is on the disk, and the request is still there."""
    save = f.strategy.save
    patch.setattr(f.strategy, "save", lambda: (save(), die()))


def worked(f: Federation, patch: pytest.MonkeyPatch) -> None:
    """Everybody has done its work under the new weights, and nobody was counted."""
    patch.setattr(f.strategy, "aggregate_train", lambda number, replies: (list(replies), die()))


@pytest.mark.parametrize("point", [asked, unwritten, unexported, written, worked], ids=lambda point: point.__name__)
@pytest.mark.parametrize("mode", ["plain", "shadow", "masked"])
def test_a_server_that_is_killed_in_a_change_of_members_changes_nothing(
    mode: str, point: Callable[[Federation, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (mode, point) == ("shadow", asked):
        pytest.skip("with a shadow nobody is asked")
    expected = Federation(tmp_path / "whole", mode).finish()
    f = Federation(tmp_path / "killed", mode)
    with monkeypatch.context() as patch:
        point(f, patch)
        with pytest.raises(Died):
            f.strategy.play(f.grid)
    f.started()
    if not f.masked or point in (unexported, written):  # elsewhere pins and books differ until the next round is over
        assert f.gap() <= (0.0 if f.masked else 1e-14)  # whether the change is in the books or not
    strategy = f.finish()
    books, there = strategy.books, expected.books
    assert books.members.numbers.tolist() == [0, 2, GROWS, JOINS]
    assert (books.samples == there.samples).all()
    assert books.samples[GROWS] == 9
    assert torch.equal(books.x0, there.x0)
    assert torch.equal(books.lam, there.lam)
    assert strategy.records[-1]["counted"] == [0, 2, GROWS, JOINS]
    assert f.gap() <= (0.0 if f.masked else 1e-14)
    assert not list((f.folder / "server").glob("expel-*"))


def test_a_change_that_is_made_again_is_not_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at every step, one after the other."""
    expected = Federation(tmp_path / "whole", "plain").finish()
    f = Federation(tmp_path / "killed", "plain")
    for point in (asked, unwritten, written, worked):
        with monkeypatch.context() as patch:
            point(f, patch)
            with pytest.raises(Died):
                f.strategy.play(f.grid)
        f.started()
    assert torch.equal(f.finish().books.x0, expected.books.x0)
    assert f.gap() < 1e-14
