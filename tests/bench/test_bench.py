"""The bench measures what it says: it runs, its figures fit together; no figure is asserted."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedvra
from fedvra.bench import against, sides, speed
from fedvra.bench.against import Checkout, measure_against
from fedvra.bench.bare import Bare
from fedvra.bench.clients import measure_clients
from fedvra.bench.duel import Duel
from fedvra.bench.jobs import Simulation
from fedvra.bench.resident import memory_mb
from fedvra.bench.sides import Side
from fedvra.bench.workloads import WORKLOADS
from fedvra.cli import main
from fedvra.core.errors import FedvraError, UsageError
from fedvra.data.dataset import FederatedData

TINY = replace(WORKLOADS["w1"], clients=6, samples=20, cohort=2, epochs=1, batch_size=10)
ROOT = Path(fedvra.__file__).parents[2]


def test_speed_report_fits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "WARM_UP_SECONDS", (0.0, 0.0))
    report = speed.measure("tiny", TINY, workers=2, passes=2, rounds=1)
    assert report.client_steps == 4
    assert set(report.seconds) == {"bare", "fedavg", "fedvra"}
    assert set(report.ratio) == set(report.processor_ratio) == {"bare"}
    assert set(report.ratio["bare"]) == {"fedavg", "fedvra"}
    figures = (report.seconds, report.processor_seconds, report.ratio["bare"], report.memory_mb)
    assert all(value > 0 for each in figures for value in each.values())
    assert report.limit_seconds > 0
    json.dumps(report.to_json())


@pytest.mark.parametrize(("stateful", "algorithm"), [(False, fedvra.FedAvg()), (True, fedvra.Scaffold())])
def test_the_bare_loops_are_the_algorithms_they_stand_for(stateful: bool, algorithm: fedvra.Algorithm) -> None:
    """Whole batches and everybody in every round, so that the order of samples and clients does not matter."""
    w = replace(TINY, cohort=6, epochs=3, batch_size=20)
    inputs, labels = w.raw()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    images = w.transform(inputs, None, torch.float32)
    bare = Bare(lambda: model, images, labels, 6, 6, 3, 20, stateful=stateful)
    for _ in range(4):
        bare.round()
    bare.close()
    offsets = np.arange(7) * 20
    data = FederatedData(fedvra.Dataset("own", images, labels, classes=10), offsets, np.arange(120))
    settings = {
        **w.settings(data),
        "sampler": fedvra.Full(),
        "problem": fedvra.Supervised(lambda: model, weight_decay=1e-3),
    }
    found = fedvra.simulate(algorithm, rounds=4, workers=1, x_init=flat(model.parameters()), **settings)
    torch.testing.assert_close(flat(bare.x0), found.x0)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in tensors])


def test_a_cold_workload_has_new_processes_in_every_pass_and_a_bare_loop_with_state() -> None:
    tiny = replace(TINY, cold=True)
    report = speed.measure("tiny", tiny, workers=1, passes=2, rounds=1, algorithms=["fedvra"])
    assert set(report.seconds) == {"bare", "stateful", "fedvra"}
    assert set(report.ratio) == {"bare", "stateful"}


@pytest.mark.parametrize("name", ["w4", "w5", "w6", "w7"])
def test_every_kind_of_network_is_timed_beside_its_bare_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "WARM_UP_SECONDS", (0.0, 0.0))
    tiny = replace(WORKLOADS[name], clients=4, samples=4, cohort=2, epochs=1, batch_size=2)
    report = speed.measure(name, tiny, workers=1, passes=1, rounds=1, algorithms=["scaffold"])
    assert set(report.seconds) == {"bare", "scaffold"}
    assert report.fedvra_over_fedavg is None
    assert report.limit_seconds > 0


def test_the_limit_counts_the_arithmetic_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert speed.matmul_rate(size=16, seconds=0) > 0
    monkeypatch.setattr(speed, "matmul_rate", lambda: 1e9)  # that of the machine swings
    whole, half, shared = (
        speed.limit_seconds(replace(TINY, cohort=m), workers) for m, workers in [(4, 1), (2, 1), (4, 2)]
    )
    assert whole == 2 * half == 2 * shared


def test_only_clients_that_took_part_have_state(tmp_path) -> None:
    one_step = replace(WORKLOADS["w3"], cohort=5)
    (report,) = measure_clients([100_000], one_step, rounds=3, workers=2, memory_limit=0, folder=tmp_path)
    assert report.clients == 100_000
    assert 5 <= report.took_part <= 15
    assert report.state_gb < 0.2


def test_unknown_workloads_are_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "w9"])
    assert result.exit_code == 2
    assert "there is no workload 'w9'" in result.output


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_the_sizes_they_claim(name: str) -> None:
    sizes = {"w1": 240, "w2": 200, "w3": 100, "w3-cold": 100, "w4": 40, "w5": 100, "w6": 40, "w7": 240}
    assert sizes[name] == WORKLOADS[name].client_steps


def test_two_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "WARM_UP_SECONDS", (0.0, 0.0))
    (duel,) = measure_against("tiny", TINY, Checkout.at(ROOT), workers=2, passes=2, rounds=2, algorithms=["fedvra"])
    assert duel.ours == duel.other
    assert len(duel.our_seconds) == len(duel.other_seconds) == 2
    assert all(seconds > 0 for seconds in (*duel.our_seconds, *duel.other_seconds))
    report = json.loads(json.dumps(duel.to_json()))
    assert report["quartiles"][0] <= report["ratio"] <= report["quartiles"][1]
    assert report["verdict"].endswith(f"x as fast as {duel.other}; too few passes to tell from noise")


def test_the_passes_of_all_starts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is started first changes, so that the second list is (theirs, ours)."""
    found = iter([[(1.0, 1.0), (2.0, 3.0)], [(8.0, 4.0), (5.0, 5.0)]])
    monkeypatch.setattr(against, "_take_turns", lambda *_: next(found))
    (duel,) = measure_against("tiny", TINY, Checkout.at(ROOT), workers=2, starts=2, algorithms=["fedvra"])
    assert duel.ratios == [1.0, 1.5, 2.0, 1.0]


def test_a_checkout_needs_no_bench_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "fedvra", tmp_path / "src" / "fedvra", ignore=shutil.ignore_patterns("bench"))
    side = Side(tmp_path.name, tmp_path / "src", Simulation(TINY, "fedavg", 1, 1 << 20))
    assert side.run(3).seconds > 0
    side.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("", "AttributeError: module 'fedvra' has no attribute"),
        ("import os; os.write(2, b'no more'); os._exit(3)", "no more"),
        ("import os; os._exit(3)", "it ended without a word"),
    ],
)
def test_a_checkout_that_cannot_be_run_is_named(tmp_path: Path, code: str, says: str) -> None:
    package = tmp_path / "src" / "fedvra"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    with pytest.raises(FedvraError, match=f"{tmp_path.name} .* cannot be timed: {says}"):
        Side(tmp_path.name, tmp_path / "src", Simulation(TINY, "fedavg", 1, 1 << 20))


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no checkout of fedvra"):
        Checkout.at(tmp_path)
    for arguments, says in (
        (["w1", "--against", str(tmp_path)], "is no checkout of fedvra"),
        (["clients", "--against", str(ROOT)], "clients has no opponent"),
        (["w1", "--algorithms", "fedavgg"], "did you mean 'fedavg'?"),
    ):
        result = CliRunner().invoke(main, ["bench", *arguments])
        assert result.exit_code == 2
        assert says in result.output


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6], "1.15 x as fast as before; within the noise"),
        ([2.1, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6], "1.15 x as fast as before; faster, beyond the noise"),
        ([1.9, 1.8, 1.9, 1.7, 1.9, 1.6, 1.8], "0.90 x as fast as before; slower, beyond the noise"),
        ([1.9, 1.8, 1.9], "0.95 x as fast as before; too few passes to tell from noise"),
    ],
)
def test_the_verdict_weighs_the_difference_against_the_noise(others: list[float], verdict: str) -> None:
    duel = Duel("w1", "title", "fedavg", 2, 3, 1, "now", "before", (2.0,) * len(others), tuple(others))
    assert duel.verdict == verdict


def test_rows_that_nobody_has_mapped_are_counted_as_memory() -> None:
    with io.FileIO(os.memfd_create("fedvra-state"), "r+") as file:
        before = memory_mb(os.getpid())
        file.write(bytes(32 << 20))
        assert memory_mb(os.getpid()) - before == pytest.approx(32, abs=8)
