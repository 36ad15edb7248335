"""The bench measures what it says: it runs, its figures fit together; no figure is asserted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fedvra.bench import speed
from fedvra.bench.clients import measure_clients
from fedvra.bench.workloads import WORKLOADS
from fedvra.cli import main

TINY = replace(WORKLOADS["w1"], clients=6, samples=20, cohort=2, epochs=1, batch_size=10)


def test_speed_report_fits_together() -> None:
    report = speed.measure("tiny", TINY, workers=2, passes=2, rounds=1)
    assert report.client_steps == 4
    assert set(report.seconds) == {"bare", "fedavg", "fedvra"}
    assert set(report.ratio) == {"fedavg", "fedvra"}
    assert all(value > 0 for value in (*report.seconds.values(), *report.ratio.values(), report.memory_mb))
    assert report.limit_seconds > 0
    json.dumps(report.to_json())


def test_the_limit_counts_the_arithmetic_of_one_round() -> None:
    whole, half = (speed.limit_seconds(replace(TINY, cohort=m), workers=1) for m in (4, 2))
    assert 1 < whole / half < 4  # twice the work; the rate of the machine itself swings


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
    assert {"w1": 240, "w2": 200, "w3": 100}[name] == WORKLOADS[name].client_steps
