"""Masks, the keys they come from, and the table of clients that a client looks at before it takes part."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chisquare

import fedvra as fv
from fedvra.cli import main
from fedvra.core.whole import Ring, Words
from fedvra.flower.mask_keys import MaskKey, RosterError, Use, Used, make_key, read_peers
from fedvra.flower.mask_table import MaskedSum, Table
from fedvra.flower.masking import Masks, common_digest
from fedvra.flower.protocol import Order


def parties(count: int, digests: list[bytes] | None = None) -> list[Masks]:
    keys = {i: X25519PrivateKey.generate() for i in range(count)}
    public = {i: key.public_key() for i, key in keys.items()}
    digests = digests or [b"told"] * count
    return [Masks(i, keys[i], {j: public[j] for j in keys if j != i}, digests[i]) for i in keys]


def unmasked(ring: Ring, masked: list[Words], size: int) -> Words:
    total = np.zeros(size, np.uint64)
    for words in masked:
        total = ring.add(total, words)
    return total


@pytest.mark.parametrize("bits", [8, 13, 16, 32, 64])
def test_masks_cancel_in_the_sum_of_all_and_in_no_other(bits: int) -> None:
    ring, vectors = Ring(bits), [torch.tensor([i, -i, 5]) for i in range(4)]
    sent = [each.apply(ring, ring.wrap(v), "move") for each, v in zip(parties(4), vectors, strict=True)]
    assert ring.signed(unmasked(ring, sent, 3)).tolist() == [6, -6, 20]
    assert ring.signed(unmasked(ring, sent[:3], 3)).tolist() != [3, -3, 15]


@pytest.mark.parametrize("bits", [8, 16])
def test_what_is_sent_is_uniform_whatever_it_hides(bits: int) -> None:
    """Chi-square over the 256 values of the leading byte, of one client's upload of nothing but zeros."""
    sent = parties(3)[1].apply(Ring(bits), np.zeros(200_000, np.uint64), "move")
    found = chisquare(np.bincount((sent >> np.uint64(bits - 8)).astype(int), minlength=256))
    assert found.pvalue > 1e-9


def test_masks_differ_by_order_purpose_and_pair() -> None:
    ring, nothing = Ring(16), np.zeros(1000, np.uint64)
    one = parties(3)[0]
    other = replace(one, digest=b"told otherwise")
    streams = [one.apply(ring, nothing, "move"), one.apply(ring, nothing, "second"), other.apply(ring, nothing, "move")]
    for k, left in enumerate(streams):
        for right in streams[k + 1 :]:
            assert (left == right).mean() < 0.01  # 1/65536 of them by chance


def test_clients_that_were_told_different_things_add_up_to_noise() -> None:
    ring, size = Ring(16), 20_000
    sent = [each.apply(ring, np.zeros(size, np.uint64), "move") for each in parties(3, [b"a", b"a", b"b"])]
    found = chisquare(np.bincount((unmasked(ring, sent, size) >> np.uint64(8)).astype(int), minlength=256))
    assert found.pvalue > 1e-9


def test_the_digest_is_of_all_that_is_told_to_all_and_of_nothing_else() -> None:
    order = Order("train", "ab", 5, client=1, number=7, arrays={"x0": torch.ones(3), "table": torch.ones(7)})
    assert common_digest(order) == common_digest(replace(order, client=2, counted="cd", steps=3, eta=1.0, alpha=2.0))
    changed = [
        replace(order, number=8),
        replace(order, incarnation=1),
        replace(order, round=1),
        replace(order, unit=0.5),
        replace(order, sigma=1.0),
        replace(order, arrays={**order.arrays, "x0": torch.tensor([1.0, 1.0, 2.0])}),
        replace(order, arrays={**order.arrays, "table": torch.zeros(7)}),
        replace(order, arrays={"x0": torch.ones(3)}),
    ]
    assert len({common_digest(each) for each in [order, *changed]}) == 1 + len(changed)
    assert common_digest(order, stamped=False) == common_digest(replace(order, number=9, incarnation=4), stamped=False)


# -- keys --------------------------------------------------------------------------------------------------------------------


def test_keys_are_private_and_pinned_from_their_public_files(tmp_path: Path) -> None:
    made = [make_key(i, tmp_path / "keys") for i in (0, 4)]
    peers = tmp_path / "peers.txt"
    peers.write_text("# by telephone\n" + "".join(public.read_text() for _, public, _ in made))
    assert [stat.S_IMODE(path.stat().st_mode) for path, _, _ in made] == [0o600, 0o600]
    found = read_peers(peers)
    assert sorted(found) == [0, 4]
    key = MaskKey(made[1][0])
    assert (key.client, key.private.public_key()) == (4, found[4])
    with pytest.raises(fv.UsageError, match="is there already"):
        make_key(0, tmp_path / "keys")


def test_keys_are_made_by_a_command(tmp_path: Path) -> None:
    words = ["federation", "keys", "3", "--out", str(tmp_path / "masks")]
    first, again = (CliRunner().invoke(main, words) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 2)
    public = (tmp_path / "masks" / "client-3.pub").read_text().split()
    assert f"client {public[0]} has the key {public[1]}" in first.output
    assert MaskKey(tmp_path / "masks" / "client-3.key").client == 3
    too_few = CliRunner().invoke(main, ["federation", "demo", "--nodes", "2", "--masked"])
    assert (too_few.exit_code, "2 nodes are too few" in " ".join(too_few.output.split())) == (2, True)


@pytest.mark.parametrize(
    ("text", "why"), [("0 nonsense", "line 1"), ("zero\n", "line 1"), ("{0}{0}", "twice"), ("{0}1 {1}", "twice")]
)
def test_a_file_of_peers_that_is_none(text: str, why: str, tmp_path: Path) -> None:
    _, public, key = make_key(0, tmp_path / "keys")
    (tmp_path / "peers").write_text(text.format(public.read_text(), key))
    with pytest.raises(fv.UsageError, match=why):
        read_peers(tmp_path / "peers")
    with pytest.raises(fv.UsageError, match="cannot be read"):
        read_peers(tmp_path / "nowhere")


def test_a_damaged_key_is_not_used(tmp_path: Path) -> None:
    path, _, _ = make_key(0, tmp_path)
    held = json.loads(path.read_text())
    for broken in ({**held, "private": "x"}, {**held, "used": {"ab": {}}}, [], {"client": 0}):
        path.write_text(json.dumps(broken))
        with pytest.raises(fv.UsageError, match="is not a key for masked sums"):
            MaskKey(path)


USE = Use("ab", (1, 5), 3, "told", (0, 1, 2))


def test_no_order_is_answered_twice_and_no_round_to_two_cohorts(tmp_path: Path) -> None:
    path, _, _ = make_key(0, tmp_path)
    pinned = dict.fromkeys(range(4))
    MaskKey(path).spend(USE, pinned)
    MaskKey(path).spend(replace(USE, stamp=(2, 1)), pinned)  # a server that was restarted asks for the same again
    refused = {
        "its masks were used": [USE, replace(USE, stamp=(2, 1)), replace(USE, stamp=(2, 0), round=9)],
        "was answered before": [
            replace(USE, stamp=(2, 2), told="to others"),
            replace(USE, stamp=(2, 2), round=2),
        ],
    }
    for why, uses in refused.items():
        for use in uses:
            with pytest.raises(RosterError, match=why):
                MaskKey(path).spend(use, pinned)
    MaskKey(path).spend(replace(USE, stamp=(2, 2), round=4, told="to others"), pinned)
    MaskKey(path).spend(replace(USE, experiment="cd"), pinned)  # another experiment, with other masks


def test_what_was_told_of_earlier_rounds_is_not_told_otherwise_later() -> None:
    pinned = dict.fromkeys(range(4))
    last = replace(USE, outcomes=b"\0\1\1").after(Used(), pinned)
    more = replace(USE, stamp=(1, 6), round=4, outcomes=b"\0\1\1\0")
    assert more.after(last, pinned).rounds == 4
    for other in (b"\1\1\1\0", b"\0\1\0\0", b"\0\1"):
        with pytest.raises(RosterError, match="otherwise than before"):
            replace(more, outcomes=other).after(last, pinned)


@pytest.mark.parametrize(
    ("pending", "counted", "outcome", "fits"),
    [("b", "b", 1, True), ("b", "b", 0, False), ("b", "a", 1, False), ("b", "a", 0, True), ("", "a", 1, True)],
)
def test_an_upload_counted_where_its_round_did(pending: str, counted: str, outcome: int, fits: bool) -> None:
    last, use = Used(round=2), replace(USE, outcomes=bytes([1, 1, outcome]))
    if fits:
        use.agrees(last, pending, counted)
        return
    with pytest.raises(RosterError, match="of round 3 it is told otherwise than the others"):
        use.agrees(last, pending, counted)


def test_a_sum_of_duals_leaves_out_only_those_who_are_not_pinned_any_more() -> None:
    first = USE.after(Used(), dict.fromkeys(range(4)))
    fewer = replace(USE, report=True, stamp=(1, 6), clients=(0, 1))
    with pytest.raises(RosterError, match=r"leaves out clients \[2\]"):
        fewer.after(first, dict.fromkeys(range(4)))
    assert fewer.after(first, dict.fromkeys((0, 1, 3))).met == [0, 1, 2]


# -- the table ---------------------------------------------------------------------------------------------------------------


def table(**columns: Any) -> Table:
    clients = np.arange(4)
    given: dict[str, Any] = {
        "clients": clients,
        "omega": np.full(4, 0.25),
        "first": np.ones(4),
        "second": np.zeros(4),
        "steps": np.full(4, 3),
        "eta": np.full(4, 0.1),
        "gamma": np.zeros(4),
    }
    return Table(**{**given, **{name: np.asarray(values) for name, values in columns.items()}})


def test_a_table_is_read_as_it_was_sent() -> None:
    found = Table.read(table(steps=[1, 2, 3, 4]).tensor())
    assert (found.clients.tolist(), found.steps.tolist(), found.row(2)) == ([0, 1, 2, 3], [1, 2, 3, 4], 2)
    found.check(range(4), least=3)


@pytest.mark.parametrize(
    "sent",
    [
        torch.empty(0),
        torch.ones(7),
        torch.ones(8, dtype=torch.float64),
        table(clients=[0, 1, 1, 2]).tensor(),
        table(clients=[0, 2, 1, 3]).tensor(),
        table(omega=[0.5, np.nan, 0.2, 0.3]).tensor(),
        table(first=[-1, 1, 1, 1]).tensor(),
        table(steps=[0.5, 1, 1, 1]).tensor(),
    ],
)
def test_what_is_no_table_is_refused(sent: torch.Tensor) -> None:
    with pytest.raises(RosterError, match="table of clients"):
        Table.read(sent)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"clients": [0, 1, 2, 9]}, r"keys of clients \[9\] are not pinned"),
        ({"first": [1, 1e-6, 1e-6, 1e-6]}, "1 of the 4 clients"),  # the others are silenced by their weights
        ({"steps": [900, 1, 1, 1]}, "1 of the 4 clients"),  # by their work
        ({"eta": [0.1, 0, 0, 0.1]}, "2 of the 4 clients"),  # by their stepsizes
        ({"gamma": [0, 20, 20, 20], "steps": [4] * 4}, "1 of the 4 clients"),  # by a pull that undoes their steps
        ({"gamma": [0, 1e200, 1e200, 1e200]}, "1 of the 4 clients"),  # by one that carries them away
        ({"second": [1, 0, 0, 0]}, "1 of the 4 clients"),  # in the other sum
        ({"omega": [1, 0, 0, 0]}, "has no weight"),
        (
            {"omega": [1, 1e-6, 1e-6, 1e-6]},
            "1 of the 4 clients of this sum count, by weight, ",
        ),  # of losses and buffers
    ],
)
def test_a_client_does_not_hide_among_those_who_do_not_count(lie: dict[str, Any], why: str) -> None:
    with pytest.raises(RosterError, match=why):
        table(**lie).check(range(4), least=3)


def test_a_client_does_not_hide_in_two_sums_whose_difference_shows_it() -> None:
    """Nor among others who nearly fall out of it."""
    for second in ([1, 1, 1, 2], [1, 1.0001, 0.9999, 2], [1, 1, 2, 2]):
        with pytest.raises(RosterError, match=r"of the 4 clients would count in a difference of its two sums"):
            table(second=second).check(range(4), least=3)
    table(second=[1, 2, 3, 4]).check(range(4), least=3)


def test_a_pull_of_the_usual_strength_hides_nobody_less() -> None:
    found = table(gamma=[0.0, 1e-18, 0.5, 10.0])
    np.testing.assert_allclose(found.reach, [0.3, 0.3, 2 * (1 - 0.95**3), 0.1], rtol=1e-12)
    found.check(range(4), least=4)


def test_somebody_who_is_not_in_the_table_does_not_answer() -> None:
    with pytest.raises(RosterError, match="client 7 is not in the table"):
        table().row(7)


@pytest.mark.parametrize("bad", [{"least": 2}, {"bits": 7}, {"bits": 33}, {"bits": 16.5}])
def test_sums_of_two_and_odd_widths_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(fv.UsageError, match="MaskedSum"):
        MaskedSum(**bad)
