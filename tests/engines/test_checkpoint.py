"""Checkpoints: everything is in them, to the bit, and nothing that is damaged is taken for whole."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from boxed import Boxed
from fedvra.engines import checkpoint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.local.protocol import SolverSettings
from fedvra.runs.files import Record
from fedvra.state import durable
from small_nets import SETTINGS, batch_norm, mlp, small_data

ROUNDS = 6


EAGER = SolverSettings(path="eager")
"""Spares the preparation of a faster path, of which there would be many."""


def supervised(algorithm: fv.Algorithm, model: Any = mlp, buffers: Any = "refuse", **options: Any) -> Experiment:
    problem = fv.Supervised(model, weight_decay=1e-3, buffers=buffers)
    return Experiment(algorithm, problem, data=small_data(), **{**SETTINGS, "solver": EAGER, **options})


def counting_norm() -> torch.nn.Module:
    """momentum=None averages over the batches so far, whose number is a buffer of its own."""
    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16, momentum=None), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers)


def quadratic() -> Experiment:
    rng = np.random.default_rng(0)
    A = np.stack([np.diag(row) for row in rng.uniform(0.5, 2, size=(12, 9))])
    problem = fv.Quadratic(torch.tensor(A), torch.tensor(rng.normal(size=(12, 9))))
    return Experiment(fv.FedVRA(gamma=0.2, a=2), problem, fv.Uniform(5), fv.Steps(3), lr=0.05, seed=1)


CASES: dict[str, tuple[Experiment, dict[str, Any]]] = {
    "quadratic": (quadratic(), {}),
    "blocks of clients": (supervised(fv.FedVRA(gamma=0.1, a=5), solver=SolverSettings()), {}),
    "duals and lam to the clients": (supervised(fv.Scaffold()), {}),
    "duals in bfloat16": (supervised(fv.FedVRA(gamma=0.1, a=5)), {"state_dtype": torch.bfloat16}),
    "duals on disk": (supervised(fv.FedVRA(gamma=0.1, a=5)), {"memory_limit": 0}),
    "lost replies": (supervised(fv.FedVRA(gamma=0.1, a=5), drop=0.4), {}),
    "participation counts": (supervised(fv.FedVRA(), sampler=fv.PowerOfChoice(3, 6)), {}),
    "anchors": (supervised(fv.FedPD(gamma=0.5, skip=0.6), sampler=fv.Full()), {}),
    "averaged buffers": (supervised(fv.FedVRA(), batch_norm, "average"), {}),
    "local buffers": (supervised(fv.FedVRA(), batch_norm, "local"), {}),
    "buffers with a count": (supervised(fv.FedVRA(), counting_norm, "average"), {}),
    "second block": (Experiment(fv.FedVRAU(gamma=2), Boxed(), fv.Uniform(3), fv.Steps(4), lr=0.02, seed=2), {}),
    "nothing but x0": (supervised(fv.FedAvg()), {}),
}


def opened(case: str, workers: int = 1) -> closing[Federation]:
    experiment, options = CASES[case]
    return closing(Federation(experiment, workers, **options))


def played(federation: Federation, rounds: int) -> list[Record]:
    records = [federation.round() for _ in range(rounds - federation.state.round)]
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in records]


def assert_same_state(one: Federation, other: Federation) -> None:
    a, b = one.state, other.state
    assert a.round == b.round
    assert torch.equal(a.x0, b.x0)
    assert torch.equal(a.lam, b.lam)
    assert (a.aux is None) == (b.aux is None)
    assert a.aux is None or b.aux is None or torch.equal(a.aux, b.aux)
    assert a.counts.tolist() == b.counts.tolist()
    assert one.clients.kinds().keys() == other.clients.kinds().keys()
    for name, store in one.clients.kinds().items():
        assert store.clients() == other.clients.kinds()[name].clients()
        assert store.dtype == other.clients.kinds()[name].dtype
        assert all(torch.equal(row, other.clients.kinds()[name].get(client)) for client, row in store.items())


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_to_the_same_bits_from_any_round(case: str, tmp_path: Path) -> None:
    with opened(case) as whole:
        expected = []
        for r in range(ROUNDS):
            expected += played(whole, r + 1)
            shutil.copytree(checkpoint.save(whole, tmp_path / "saved"), tmp_path / str(r + 1) / f"{r + 1:06d}")
        for stop in (3,) if case == "blocks of clients" else (1, 3, 4):  # preparing blocks takes a second
            with opened(case, workers=1 + stop % 2) as rest:
                assert checkpoint.restore(rest, tmp_path / str(stop)) == stop
                assert played(rest, ROUNDS) == expected[stop:]
                assert_same_state(rest, whole)


def test_the_cases_have_what_they_are_named_after(tmp_path: Path) -> None:
    kept: dict[str, set[str]] = {}
    for case in CASES:
        with opened(case) as federation:
            played(federation, 2)
            kept[case] = {name for name, store in federation.clients.kinds().items() if len(store)}
    assert kept == {
        **{case: {"duals"} for case in CASES},
        "anchors": {"duals", "anchors"},
        "local buffers": {"duals", "aux"},
        "second block": {"duals", "y"},
        "nothing but x0": set(),
    }


def test_the_invariant_holds_after_a_restart_with_lost_replies(tmp_path: Path) -> None:
    problem = fv.Supervised(lambda: mlp().double())
    data = small_data(dtype=torch.float64)
    experiment = Experiment(fv.FedVRA(gamma=0.2, a=3), problem, data=data, drop=0.4, solver=EAGER, **SETTINGS)
    with closing(Federation(experiment, 1)) as first:
        lost = sum(len(record.get("lost", ())) for record in played(first, 4))
        checkpoint.save(first, tmp_path)
    with closing(Federation(experiment, 2)) as second:
        checkpoint.restore(second, tmp_path)
        lost += sum(len(record.get("lost", ())) for record in played(second, 8))
        total = sum(second.omega[client] * row for client, row in second.clients.duals.items())
        assert lost > 5
        assert float(second.state.lam.norm()) > 1e-3
        assert torch.allclose(second.state.lam, torch.as_tensor(total), atol=1e-14)


def test_many_clients_are_saved_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 200)  # two rows
    with opened("quadratic") as first, opened("quadratic") as second:
        played(first, 3)
        saved = checkpoint.save(first, tmp_path)
        assert len(list(saved.glob("duals-*"))) > 2
        checkpoint.restore(second, tmp_path)
        assert_same_state(first, second)


# -- what is kept -------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_are_kept_and_leftovers_removed(tmp_path: Path) -> None:
    with opened("nothing but x0") as federation:
        for r in (1, 2, 3, 4):
            (tmp_path / ".writing-000077").mkdir(exist_ok=True)
            played(federation, r)
            checkpoint.save(federation, tmp_path)
            assert names(tmp_path) == [f"{k:06d}" for k in (r - 1, r) if k > 0]


def test_order_is_that_of_numbers(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000, 5):
        shutil.move(durable.save_snapshot(tmp_path / "one", number, [], {}), tmp_path)
    (tmp_path / "12-copy").mkdir()
    assert [path.name for path in durable.snapshots(tmp_path)] == ["000005", "999999", "1000000"]


def test_no_checkpoint_means_the_start(tmp_path: Path) -> None:
    with opened("quadratic") as federation:
        assert checkpoint.restore(federation, tmp_path) == 0
        assert checkpoint.restore(federation, tmp_path / "none") == 0
        assert federation.state.round == 0


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    with opened("quadratic") as federation:
        played(federation, 2)
        before = checkpoint.save(federation, tmp_path).stat().st_ino
        assert checkpoint.save(federation, tmp_path).stat().st_ino == before


# -- damage -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Checkpoints of the rounds 2 and 4."""
    with opened("quadratic") as federation:
        for r in (2, 4):
            played(federation, r)
            checkpoint.save(federation, tmp_path)
    return tmp_path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fill(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "a bit flipped": flip,
    "zeros, as after a power cut": fill,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "missing": Path.unlink,
}
FILES = ("manifest.json", "server.safetensors", "duals-00000.safetensors")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_and_the_one_before_it_used(damage: str, file: str, two: Path) -> None:
    DAMAGE[damage](two / "000004" / file)
    with opened("quadratic") as federation:
        with pytest.warns(UserWarning, match=rf"checkpoint .*000004 is damaged \({file}.*\) and passed over"):
            assert checkpoint.restore(federation, two) == 2
        played(federation, 4)
        checkpoint.save(federation, two)  # in the place of the damaged one
        with opened("quadratic") as again:
            assert checkpoint.restore(again, two) == 4
            assert_same_state(again, federation)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "null", '"x"', '{"sha256": 3}', '{"format": 1, "round": 4}', "{", "\xff"]
)
def test_a_manifest_that_is_none(content: str, two: Path) -> None:
    (two / "000004" / "manifest.json").write_text(content, encoding="latin1")
    with opened("quadratic") as federation, pytest.warns(UserWarning, match="000004 is damaged"):
        assert checkpoint.restore(federation, two) == 2


def test_no_flipped_bit_goes_unnoticed(two: Path) -> None:
    """Every byte of the manifest, some of the others; those of a JSON's white space change nothing and may pass."""
    rng, noticed, passed = np.random.default_rng(0), 0, 0
    for file in FILES:
        path = two / "000004" / file
        content = path.read_bytes()
        places = range(len(content)) if file == "manifest.json" else rng.choice(len(content), 60, replace=False)
        for place in map(int, places):
            changed = bytearray(content)
            changed[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                newest, manifest = next(durable.intact_snapshots(two))
            if newest.name == "000002":
                noticed += 1
            else:
                passed += 1
                assert manifest["round"] == 4
                assert json.loads(changed) == json.loads(content)
        path.write_bytes(content)
    assert noticed > 400
    assert passed < 20


def test_nothing_intact_means_starting_over_with_a_warning(two: Path) -> None:
    for folder in ("000002", "000004"):
        flip(two / folder / "server.safetensors")
    with opened("quadratic") as federation:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert checkpoint.restore(federation, two) == 0
        assert len(caught) == 3
        assert str(caught[-1].message).endswith("is intact: starting over from the first round.")
        played(federation, 1)
        checkpoint.save(federation, two)
        assert names(two) == ["000001"]  # the damaged ones lie in the future now, and are gone


def test_records_that_end_too_early(two: Path) -> None:
    with opened("quadratic") as federation:
        assert checkpoint.restore(federation, two, up_to=3) == 2
        with pytest.raises(fv.FedvraError, match="the records end at round 1, before the checkpoint"):
            checkpoint.restore(federation, two, up_to=1)
    assert names(two) == ["000002", "000004"]


def test_a_checkpoint_of_another_run_is_refused(two: Path) -> None:
    for case, found in [("second block", "5 and 4"), ("averaged buffers", r"12 and \d+")]:
        with opened(case) as federation, pytest.raises(fv.FedvraError, match=rf"and the run has {found}: was config"):
            checkpoint.restore(federation, two)


def test_a_format_of_the_future_is_refused_not_removed(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("quadratic") as federation:
        monkeypatch.setattr(durable, "FORMAT", 2)
        with pytest.raises(fv.FedvraError, match="has format 1 and this version of fedvra reads 2"):
            checkpoint.restore(federation, two)
