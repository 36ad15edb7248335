"""What lies on disks: who can read it, what happens when somebody changes it, and how a client number is given away."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fedvra as fv
from fedvra.cli import main
from fedvra.flower import Ledger, Strategy
from fedvra.flower.certificates import write_author_key, write_node_key
from fedvra.flower.gate import verifications
from fedvra.flower.node import KEY_FILE
from fedvra.flower.server_books import Books
from fedvra.flower.signing import sign_app
from fedvra.state.durable import seal, snapshots
from flower_grid import FakeGrid, make_nodes, quadratic

TLS = ("--ssl-ca-certfile", "a", "--ssl-certfile", "b", "--ssl-keyfile", "c")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    return path


def make_strategy(folder: Path, **options: Any) -> Strategy:
    return Strategy(
        fv.FedVRA(gamma=0.5, a=2), problem=quadratic(), clients=3, sampler=fv.Full(), work=fv.Steps(3), lr=0.05,
        folder=folder / "server", wait=0, **options,
    )  # fmt: skip


def run(folder: Path, rounds: int, grid: FakeGrid | None = None, **options: Any) -> tuple[Strategy, FakeGrid]:
    grid = grid or FakeGrid(make_nodes(quadratic(), folder))
    strategy = make_strategy(folder, **options)
    strategy.start(grid, num_rounds=rounds, timeout=0.01)
    return strategy, grid


def modes(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"folders": set(), "files": set()}
    for path in [folder, *folder.rglob("*")]:
        found["folders" if path.is_dir() else "files"].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return found


def test_nobody_else_can_read_the_books(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir(mode=0o755)  # made by hand: its owner's choice; what is in it is closed all the same
    run(tmp_path, rounds=2)
    closed = {"folders": {"0o700"}, "files": {"0o600"}}
    assert modes(tmp_path / "server") == closed
    assert modes(tmp_path / "node0") == closed
    assert modes(next((tmp_path / "node1").iterdir())) == closed


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")


def test_a_server_whose_checkpoints_are_all_damaged_stops_and_says_so(tmp_path: Path) -> None:
    """Beginning again at round 0 would throw the run away, and undo what every client has committed."""
    strategy, grid = run(tmp_path, rounds=3)
    for path in (tmp_path / "server").glob("*/server.safetensors"):
        damage(path)
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(fv.FedvraError, match="none of the checkpoints in"),
    ):
        run(tmp_path, rounds=4, grid=grid)
    assert len(snapshots(tmp_path / "server")) == 2  # nothing was written over
    assert strategy.books.round == 3


def test_one_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    _, grid = run(tmp_path, rounds=3)
    damage(snapshots(tmp_path / "server")[-1] / "server.safetensors")
    with pytest.warns(UserWarning, match="is damaged"):
        strategy, _ = run(tmp_path, rounds=6, grid=grid)
    assert strategy.audit(grid).relative < 1e-12


# -- a disk that somebody writes to ------------------------------------------------------------------------------------------


def forge(manifest: Path) -> None:
    """What anybody can do who may write to the disk: change the books and seal them again without the key."""
    facts = json.loads(manifest.read_bytes())
    del facts["sha256"]
    facts["keys"]["1"] = hashlib.sha256(b"the forger's").hexdigest()
    manifest.write_text(json.dumps({**facts, "sha256": seal(facts)}))


def test_forged_books_are_noticed_where_they_are_sealed_with_a_key(tmp_path: Path, key: Path) -> None:
    _, grid = run(tmp_path, rounds=2, key_file=key)
    for manifest in (tmp_path / "server").glob("*/manifest.json"):
        forge(manifest)
    with pytest.warns(UserWarning, match="has changed"), pytest.raises(fv.FedvraError, match="under this key"):
        run(tmp_path, rounds=3, grid=grid, key_file=key)


def test_forged_books_are_not_noticed_without_a_key(tmp_path: Path) -> None:
    """The docs say so; a digest shows damage, not malice."""
    _, grid = run(tmp_path, rounds=2)
    for manifest in (tmp_path / "server").glob("*/manifest.json"):
        forge(manifest)
    strategy, _ = run(tmp_path, rounds=3, grid=grid)
    assert strategy.records[-1]["counted"] == [0, 2]


def test_sealed_books_are_resumed_with_their_key_and_with_no_other(tmp_path: Path, key: Path) -> None:
    _, grid = run(tmp_path, rounds=2, key_file=key)
    strategy, _ = run(tmp_path, rounds=3, grid=grid, key_file=key)
    assert [record["round"] for record in strategy.records] == [1, 2, 3]
    with pytest.warns(UserWarning, match="has changed"), pytest.raises(fv.FedvraError, match="none of the checkpoints"):
        run(tmp_path, rounds=4, grid=grid)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_forged_ledger_counts_as_lost_where_it_is_sealed(sealed: bool, tmp_path: Path, key: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    if sealed:
        for node in grid.nodes.values():
            node.config[KEY_FILE] = str(key)
    strategy, _ = run(tmp_path, rounds=2, grid=grid, shadow=True)
    before = strategy.books.shadow[1].clone()
    folder = Ledger.of(tmp_path / "node1", strategy.books.experiment, 1).folder
    page = json.loads((folder / "ledger.json").read_bytes())
    forger = Ledger(tmp_path / "elsewhere")
    ticket = forger.stage({"lam": torch.full((4,), 7.0, dtype=torch.float64)})
    name = page["pending"]["ticket"]  # counted, though the client has not heard of it yet
    (folder / f"{name}.safetensors").write_bytes((forger.folder / f"{ticket}.safetensors").read_bytes())
    page["pending"]["sha256"] = json.loads((forger.folder / "ledger.json").read_bytes())["pending"]["sha256"]
    (folder / "ledger.json").write_text(json.dumps(page))
    strategy.play(grid)
    strategy.play(grid)
    found = strategy.audit(grid)
    if sealed:
        assert found.exact
        assert strategy.records[-2]["counted"] == [0, 2]  # lost, restored from the shadow, counted again
        assert strategy.records[-1]["counted"] == [0, 1, 2]
    else:
        assert found.differ == [1]  # only the audit sees it
    assert not torch.equal(before, torch.full((4,), 7.0, dtype=torch.float64))


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fv.UsageError, match="cannot be read"):
        make_strategy(tmp_path, key_file=tmp_path / "none")
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(fv.UsageError, match="holds 4 bytes, too few"):
        make_strategy(tmp_path, key_file=tmp_path / "short")


# -- the commands -------------------------------------------------------------------------------------------------------------


def said(*words: Any, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_a_client_number_can_be_given_to_another_key_on_purpose(tmp_path: Path) -> None:
    strategy, grid = run(tmp_path, rounds=2)
    said("federation", "rebind", tmp_path / "server", 1)
    grid.nodes[201] = replace(grid.nodes.pop(101), key=b"a new machine")
    strategy, _ = run(tmp_path, rounds=4, grid=grid)
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    assert strategy.audit(grid).relative < 1e-12


def test_it_can_be_given_to_one_key_and_no_other(tmp_path: Path, key: Path) -> None:
    _, public = write_node_key(tmp_path / "keys", 7)
    run(tmp_path, rounds=1, key_file=key)
    shown = said("federation", "rebind", tmp_path / "server", 1, "--key", public, "--key-file", key)
    books = Books.read(tmp_path / "server", key.read_bytes())
    assert books is not None
    assert books.keys[1][:16] in shown
    assert books.claim(1, "0" * 64) is not None
    again = ("federation", "rebind", tmp_path / "server", 2, "--key", public, "--key-file", key)
    assert "belongs to client 1" in str(CliRunner().invoke(main, [str(word) for word in again]).output)


def test_a_client_is_expelled_by_a_command(tmp_path: Path, key: Path) -> None:
    _, grid = run(tmp_path, rounds=2, key_file=key)
    shown = said("federation", "expel", tmp_path / "server", 1, "--key-file", key)
    assert shown == "client 1 leaves before the next round"
    strategy, _ = run(tmp_path, rounds=4, grid=grid, key_file=key)
    assert strategy.records[2]["left"] == [1]
    assert strategy.records[-1]["counted"] == [0, 2]
    assert strategy.audit(grid).relative < 1e-12


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("rebind", "{none}", 1), "there are no books in"),
        (("rebind", "{server}", 3), "there are clients 0 to 2, not 3"),
        (("rebind", "{server}", 1, "--key", "{server}"), "cannot be read as a public key"),
        (("expel", "{none}", 1), "there are no books in"),
        (("expel", "{server}", 3), "there is no client 3"),
        (("sign", "{none}", "--key", "{none}"), "is not a Flower app"),
        (("sign", str(EXAMPLE), "--key", "{none}"), "cannot be read"),
        (("gate", "--listen", "8443", *TLS), "HOST:PORT"),
        (("gate", "--listen", "localhost:1", *TLS), "there is no file a"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence(words: tuple[Any, ...], reason: str, tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    places = {"none": tmp_path / "none", "server": tmp_path / "server"}
    assert reason in said("federation", *(str(word).format(**places) for word in words), code=2)


def test_a_signature_is_for_one_app_as_it_is(tmp_path: Path) -> None:
    app = tmp_path / "evil"
    (app / "evil").mkdir(parents=True)
    (app / "pyproject.toml").write_text((EXAMPLE / "pyproject.toml").read_text())
    (app / "hospitals.py").write_text("app = 1\n")
    key = write_author_key(tmp_path / "keys")
    first = sign_app(app, key, tmp_path / "signatures")
    again = sign_app(app, key, tmp_path / "signatures")
    (app / "hospitals.py").write_text("app = 2\n")
    changed = sign_app(app, key, tmp_path / "signatures")
    assert first.sha256 == again.sha256 != changed.sha256
    assert first.trusted.read_text().count("ssh-ed25519 ") == 1
    assert verifications(b"another app", tmp_path / "signatures") == {}
    other = sign_app(app, write_author_key(tmp_path / "colleague"), tmp_path / "signatures")
    assert len(json.loads(other.signature.read_text())) == 2
    assert other.trusted.read_text().count("ssh-ed25519 ") == 2
