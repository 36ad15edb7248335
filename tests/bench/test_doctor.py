"""``fedvra doctor``, on the device that every machine has."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fedvra.bench import doctor
from fedvra.cli import main


@pytest.fixture(autouse=True)
def one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NETWORKS", ("w1",))


def test_it_says_what_was_compared_and_that_all_agree() -> None:
    result = CliRunner().invoke(main, ["doctor", "--device", "cpu", "--workloads", "", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["about"]["device"] == "cpu"
    assert [each["algorithm"] for each in found["comparison"]] == ["fedavg", "fedvra", "scaffold"]
    assert all(each["apart"] == 0 and each["good"] for each in found["comparison"])
    assert found["timing"] == []


def test_a_difference_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = doctor._run

    def astray(workload, algorithm, data, device, rounds):  # type: ignore[no-untyped-def]
        start, x0, path = run(workload, algorithm, data, device, rounds)
        return start, x0 + (0.1 if algorithm == "scaffold" else 0), path

    calls = iter(range(6))
    monkeypatch.setattr(doctor, "_run", lambda *given: (astray if next(calls) % 2 else run)(*given))
    result = CliRunner().invoke(main, ["doctor", "--device", "cpu", "--workloads", ""])
    assert result.exit_code == 1
    assert "BAD  w1 scaffold" in result.output
    assert "1 of 3 differ from the CPU" in result.output


def test_a_device_that_is_not_there_is_refused() -> None:
    result = CliRunner().invoke(main, ["doctor", "--device", "cuda:7"])
    assert result.exit_code == 2
    assert "cannot be used here" in result.output
