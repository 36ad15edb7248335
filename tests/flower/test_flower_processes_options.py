"""Real processes once more: small messages, private records, members who come and go, masked sums; the gap in every round."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

import fedvra as fv
from fedvra.flower.mask_keys import make_key
from fedvra.flower.masked_node import MASK_KEY, PEERS
from fedvra.flower.members import expel
from fedvra.flower.node import LEAVE
from flower_shards import CLIENTS, Shards, algorithm, all_data, relative, settings, start

pytestmark = pytest.mark.slow

NEWCOMER = CLIENTS
RULE = "record:clip=1,noise=2"


class Lively(Shards):
    """One more client than at first, and nodes that are told other things when they are started again."""

    preload = ("faulty.client",)

    def client(self, i: int) -> int:
        return i

    def node_config(self, i: int) -> str:
        masks = self.folder / "masks"
        keys = f'{MASK_KEY}="{masks / f"client-{i}.key"}" {PEERS}="{masks / "peers.txt"}"' if masks.exists() else ""
        leaves = f"{LEAVE}=true" if (self.folder / f"leaves-{i}").exists() else ""
        return " ".join([super().node_config(i), keys, leaves])

    def restart(self, *nodes: int) -> None:
        for i in nodes:
            self.stop_node(i)
        self.bring(*nodes)


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lively]:
    yield from start(tmp_path_factory.mktemp("lively"), secure=False, kind=Lively, workers=True)


def test_small_messages(lively: Lively) -> None:
    """The simulator's x0, and duals that add up to lam though they moved by what was left of the uploads."""
    options = {"compress": "topk:0.5+quantize:4", "compress_down": "int8"}
    log = lively.play(**{"books": "small", "rounds": 2, **{name.replace("_", "-"): o for name, o in options.items()}})
    records = lively.records("small")
    assert [record["counted"] for record in records] == [[0, 1, 2]] * 2, log
    assert all(record["audit"]["missing"] == {} and record["relative"] < 1e-6 for record in records)
    expected = fv.simulate(algorithm(), data=all_data(), rounds=2, workers=1, **settings(), **options)
    state = lively.server_state("small")
    assert relative(state.x0, expected.x0) < 1e-6
    assert relative(state.lam, expected.lam) < 1e-6
    assert [record["bytes_up"] for record in records] == [metrics["bytes_up"] for metrics in expected.metrics]


def test_private_records(lively: Lively) -> None:
    pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")
    log = lively.play(books="private", rounds=2, privacy=RULE)
    records = lively.records("private")
    assert [record["counted"] for record in records] == [[0, 1, 2]] * 2, log
    assert all(record["audit"]["missing"] == {} and record["relative"] < 1e-6 for record in records)
    assert 0 < records[0]["epsilon"] < records[1]["epsilon"]
    assert all(record["train_loss"] is None for record in records)


def test_one_joins_one_is_expelled_and_one_says_farewell(lively: Lively) -> None:
    shutil.copy(lively.folder / "shard0.npz", lively.folder / f"shard{NEWCOMER}.npz")
    more = {"books": "members", "max-clients": CLIENTS + 1}
    lively.play(**more, rounds=1)
    lively.bring(NEWCOMER)
    lively.play(**more, rounds=2)
    expel(lively.folder / "members", 1)
    (lively.folder / "leaves-2").touch()
    lively.restart(2)
    log = lively.play(**more, rounds=4)
    records = lively.records("members")
    assert records[0]["counted"] == [0, 1, 2], log
    assert (records[1]["joined"], records[1]["counted"]) == ([NEWCOMER], [0, 1, 2, NEWCOMER])
    assert sorted(client for record in records for client in record.get("left", [])) == [1, 2]
    assert records[-1]["counted"] == [0, NEWCOMER]
    assert all(record["audit"]["missing"] == {} and record["relative"] < 1e-6 for record in records)
    (lively.folder / "leaves-2").unlink()


def test_masked_sums_of_private_records_and_of_those_who_stay(lively: Lively) -> None:
    pytest.importorskip("dp_accounting", reason="the extra fedvra[privacy] is not installed")
    nodes = range(CLIENTS + 1)
    public = [make_key(i, lively.folder / "masks")[1].read_text() for i in nodes]
    peers = lively.folder / "masks" / "peers.txt"
    peers.write_text("".join(public))
    lively.restart(*nodes)
    more = {"books": "masked", "max-clients": CLIENTS + 1, "masked": True, "privacy": RULE}
    lively.play(**more, rounds=2)
    peers.write_text("".join(text for i, text in enumerate(public) if i != 1))
    expel(lively.folder / "masked", 1)
    log = lively.play(**more, rounds=3)
    records = lively.records("masked")
    assert [record["counted"] for record in records] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3]], log
    assert records[-1]["left"] == [1]
    assert all(record["audit"]["missing"] == {} and record["audit"]["gap"] == 0.0 for record in records)
    assert 0 < records[0]["epsilon"] < records[-1]["epsilon"]
    assert all(record["train_loss"] is None for record in records)
    whole = lively.server_state("masked", secure=True).whole
    assert whole is not None
    assert bool(whole.any())
