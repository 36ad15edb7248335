"""The client's books: two states, one ticket, and disks that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fedvra as fv
from fedvra.flower.client_ledger import Ledger, LostStateError, StaleMessageError

ONE, TWO = {"lam": torch.tensor([1.0, 1.0])}, {"lam": torch.tensor([2.0, 2.0])}


def lam(ledger: Ledger) -> list[float]:
    rows = ledger.rows()
    return rows["lam"].tolist() if rows else []


def committed(folder: Path) -> tuple[Ledger, str]:
    """A ledger whose first upload was counted, at stamp (1, 2)."""
    ledger = Ledger(folder)
    ledger.settle("", (1, 1))
    ticket = ledger.stage(ONE)
    ledger.settle(ticket, (1, 2))
    return ledger, ticket


def test_a_counted_upload_is_promoted(tmp_path: Path) -> None:
    ledger, _ = committed(tmp_path)
    assert lam(ledger) == [1, 1]
    assert ledger.page.pending is None


def test_an_upload_that_was_not_counted_is_dropped(tmp_path: Path) -> None:
    ledger, ticket = committed(tmp_path)
    ledger.stage(TWO)
    ledger.settle(ticket, (1, 3))
    assert lam(ledger) == [1, 1]
    assert [path.stem for path in tmp_path.glob("*.safetensors")] == [ticket]


@pytest.mark.parametrize("counted", ["", "0" * 32])
def test_any_other_ticket_changes_nothing(tmp_path: Path, counted: str) -> None:
    ledger, _ = committed(tmp_path)
    ledger.stage(TWO)
    before = ledger.page
    with pytest.raises(LostStateError):
        ledger.settle(counted, (1, 3))
    assert Ledger(tmp_path).page == before


def test_a_restored_state_goes_by_the_ticket_it_came_with(tmp_path: Path) -> None:
    ledger, ticket = Ledger(tmp_path), "ab" * 16
    ledger.settle(ticket, (2, 1), restore=TWO)
    assert lam(Ledger(tmp_path)) == [2, 2]
    ledger.settle(ticket, (2, 2), restore=ONE)  # sent again, but already here
    assert lam(ledger) == [2, 2]


@pytest.mark.parametrize("stamp", [(1, 2), (1, 1), (0, 99)])
def test_messages_that_come_late_are_ignored(tmp_path: Path, stamp: tuple[int, int]) -> None:
    """An old message names an old ticket: settling by it would drop an upload that was counted since."""
    ledger, ticket = committed(tmp_path)
    pending = ledger.stage(TWO)
    with pytest.raises(StaleMessageError):
        ledger.settle(ticket, stamp)
    ledger.settle(pending, (1, 3))
    assert lam(ledger) == [2, 2]


def test_a_new_incarnation_of_the_server_begins_to_count_anew(tmp_path: Path) -> None:
    ledger, ticket = committed(tmp_path)
    ledger.settle(ticket, (2, 1))
    assert ledger.page.stamp == (2, 1)


def test_the_books_outlive_the_process(tmp_path: Path) -> None:
    ledger, _ = committed(tmp_path)
    pending = ledger.stage(TWO)
    again = Ledger(tmp_path)
    assert again.page == ledger.page
    again.settle(pending, (1, 3))
    assert lam(Ledger(tmp_path)) == [2, 2]


def test_a_damaged_file_counts_as_lost(tmp_path: Path) -> None:
    ledger, ticket = committed(tmp_path)
    path = tmp_path / f"{ticket}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(LostStateError):
        ledger.settle(ticket, (1, 3))
    ledger.settle(ticket, (1, 4), restore=ONE)
    assert lam(ledger) == [1, 1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"committed": 1, "pending": null, "stamp": [1, 2]}'])
def test_a_damaged_page_counts_as_lost(tmp_path: Path, content: bytes) -> None:
    _, ticket = committed(tmp_path)
    (tmp_path / "ledger.json").write_bytes(content)
    with pytest.raises(LostStateError):
        Ledger(tmp_path).settle(ticket, (1, 3))


def test_a_crash_between_the_tensors_and_the_page_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, ticket = committed(tmp_path)
    monkeypatch.setattr("fedvra.flower.client_ledger.replace_durably", lambda path, content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.stage(TWO)
    monkeypatch.undo()
    again = Ledger(tmp_path)
    again.settle(ticket, (1, 3))
    assert lam(again) == [1, 1]
    assert len(list(tmp_path.glob("*.safetensors"))) == 1  # what the crash left behind is gone


@pytest.mark.parametrize("name", ["../../etc/passwd", "AB" * 16, "ab" * 17, "ab" * 16 + "\n"])
def test_names_that_are_no_tickets_never_reach_the_disk(tmp_path: Path, name: str) -> None:
    with pytest.raises(fv.UsageError, match="is not a ticket"):
        Ledger(tmp_path / "inside").settle(name, (1, 1), restore=ONE)
    with pytest.raises(fv.UsageError, match="is not a ticket"):
        Ledger.of(tmp_path, name, 0)
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_plain_json(tmp_path: Path) -> None:
    _, ticket = committed(tmp_path)
    page = json.loads((tmp_path / "ledger.json").read_text())
    assert page["committed"]["ticket"] == ticket
    assert page["stamp"] == [1, 2]
