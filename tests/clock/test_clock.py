"""Simulated time: what a round takes, who is late, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner

import fedvra as fv
from fedvra.cli import main
from fedvra.clock.reading import make_system, read_system
from fedvra.core.errors import UsageError
from fedvra.runs.history import time_to
from quadratics import quadratic

N, P = 6, 4
BYTES = P * 8
"""Of a vector; a scalar of 8 goes up besides."""


def run(system: fv.System | None, algorithm: Any = None, **settings: Any) -> fv.History:
    given: dict[str, Any] = {"sampler": fv.Uniform(3), "work": fv.Steps([1, 2, 3, 4, 5, 6]), "rounds": 5} | settings
    return fv.simulate(
        algorithm or fv.FedVRA(gamma=0.1, a=2, d=2),
        problem=fv.Quadratic(*quadratic(N, P)),
        lr=0.05,
        system=system,
        **given,
    )


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    system = fv.System(step=[0.5, 1, 2, 0.5, 1, 2], up=10.0, down=20.0, latency=0.25)
    history, plain = run(system), run(None)
    assert torch.equal(history.x0, plain.x0), "a clock without a deadline changes no number"
    assert "simulated_time" not in plain.metrics[0]
    step, steps, now = [0.5, 1, 2, 0.5, 1, 2], [1, 2, 3, 4, 5, 6], 0.0
    for record in history.metrics:
        down = 2 * BYTES if record["bytes_down"] > 3 * BYTES else BYTES
        took = max(0.25 + down / 20 + steps[i] * step[i] + (BYTES + 8) / 10 for i in record["cohort"])
        now += took
        assert record["simulated_seconds"] == pytest.approx(took, rel=1e-12)
        assert record["simulated_time"] == pytest.approx(now, rel=1e-12)


@pytest.mark.parametrize("name", ["FedVRA", "Scaffold", "FedDyn", "FedADMM", "FedAvg"])
def test_late_replies_are_not_counted_and_duals_stay_exact(name: str) -> None:
    """The same as a run in which those clients never took part: their rows are rolled back."""
    slow = fv.System(step=[1, 1, 1, 1, 1, 9.0], deadline=10.0)
    kind = getattr(fv, name)
    made = kind(gamma=0.1, a=2, d=2) if name == "FedVRA" else kind(gamma=0.1) if name == "FedADMM" else kind()
    history = run(slow, made, rounds=12)
    late = [record.get("late", []) for record in history.metrics]
    assert any(late)
    assert all(each in ([], [5]) for each in late)
    assert 5 not in history.duals
    assert history.state_drift() < 1e-12
    for record in history.metrics:
        assert record["simulated_seconds"] == (10.0 if "late" in record else max(1 + i for i in record["cohort"]))
        assert record.get("lost", []) == record.get("late", [])


def test_a_reply_that_is_lost_makes_the_server_wait_for_the_deadline_if_there_is_one() -> None:
    durations, arrived = np.array([1.0, 5.0]), np.array([True, False])
    assert fv.System().judge(durations, arrived).seconds == 1.0
    assert fv.System(deadline=20).judge(durations, arrived).seconds == 20.0
    assert fv.System(deadline=20).judge(durations, np.ones(2, dtype=bool)).seconds == 5.0
    late = fv.System(deadline=0.5).judge(durations, np.ones(2, dtype=bool))
    assert late.seconds == 0.5
    assert not late.on_time.any()


def test_a_round_in_which_everybody_is_late_leaves_the_model_alone() -> None:
    history = run(fv.System(step=1.0, deadline=0.1), rounds=3)
    assert torch.equal(history.x0, torch.zeros_like(history.x0))
    assert history.metrics[-1]["simulated_time"] == pytest.approx(0.3)


def reachable(spans: list[tuple[float, float]], period: float, start: float, busy: float) -> float:
    """The same by small steps."""
    now, grain = start, 1 / 64
    while busy > 1e-9:
        if any(a <= (now % period) < b for a, b in spans):
            busy -= grain
        now += grain
    return now


@pytest.mark.parametrize("start", [0.0, 1.5, 3.0, 7.25, 23.0])
@pytest.mark.parametrize("busy", [0.5, 2.0, 3.0, 11.0])
def test_windows(start: float, busy: float) -> None:
    spans = [(2.0, 4.0), (7.0, 8.0)]
    found = fv.Windows(10, spans=[spans]).finish(start, busy, client=0, seed=0)
    assert found == pytest.approx(reachable(spans, 10, start, busy), abs=1 / 32)


def test_clients_wait_until_they_are_reachable() -> None:
    system = fv.System(step=0.001, available=fv.Windows(period=100, duty=0.3))
    times = [m["simulated_time"] for m in run(system, rounds=8).metrics]
    assert times == sorted(times)
    assert times[-1] > 30, "somebody had to be waited for"
    begins = fv.Windows(100, duty=0.3)
    assert {begins.finish(0, 1e-9, c, 0) for c in range(5)} != {0.0}


def test_distributions_are_drawn_once_for_each_client() -> None:
    cohort = fv.Cohort(3, 1000, np.arange(1000), *(np.ones(1000) for _ in range(5)), seed=1)
    for text, low, high in (
        ("lognormal:2,0.5", 1.9, 2.1),
        ("uniform:1,3", 1.9, 2.1),
        ("exponential:2", 1.2, 1.6),  # its median is 2 ln 2
    ):
        system = fv.System(step=text)
        drawn = system.durations(cohort, 0.0, 0, 0)
        assert low < np.median(drawn) < high
        np.testing.assert_array_equal(drawn, system.durations(fv.Cohort(9, *_rest(cohort), seed=1), 0.0, 0, 0))
    assert len(np.unique(drawn)) == 1000
    jittered = fv.System(step=1.0, jitter=0.5)
    first, second = (jittered.durations(fv.Cohort(r, *_rest(cohort), seed=1), 0.0, 0, 0) for r in (0, 1))
    assert (first != second).all()
    assert 0.9 < np.median(first) < 1.1


def _rest(cohort: fv.Cohort) -> list[Any]:
    return [cohort.total, cohort.clients, cohort.p, cohort.steps, cohort.samples, cohort.omega, cohort.eta]


def test_traces_over_rounds_begin_again() -> None:
    history = run(fv.System(step=[[1.0], [10.0]]), work=fv.Steps(1), rounds=4)
    assert [m["simulated_seconds"] for m in history.metrics] == [1.0, 10.0, 1.0, 10.0]


def write(folder: Path, content: Any) -> Path:
    (folder / "phones.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return folder / "phones.yaml"


def test_a_file_with_traces(tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_text("step,up,down\n0.1,1e6,2e6\n0.2,5e5,1e6\n")
    (tmp_path / "seen.csv").write_text("client,start,stop\n0,0,10\n1,5,20\n0,12,14\n")
    path = write(
        tmp_path, "trace: devices.csv\ndeadline: 3e1\navailable: {period: 60, trace: seen.csv}\nlatency: 5e-2\n"
    )
    system = make_system(read_system(path))
    assert system == fv.System(
        step=[0.1, 0.2],
        up=[1e6, 5e5],
        down=[2e6, 1e6],
        latency=0.05,
        deadline=30,
        available=fv.Windows(60, spans=[[(0, 10), (12, 14)], [(5, 20)]]),
    )


def test_the_command_line_keeps_the_system_in_the_config_and_resumes_its_time(tmp_path: Path) -> None:
    path = write(tmp_path, {"step": "lognormal:0.05,1", "up": 1e6, "deadline": 2.0})
    options = [
        "run",
        "digits",
        "--rounds",
        "6",
        "--clients",
        "10",
        "--cohort",
        "4",
        "--targets",
        "5,99.9",
        "--workers",
        "1",
    ]
    whole = CliRunner().invoke(main, [*options, "--system", str(path), "--out", str(tmp_path / "whole")])
    assert whole.exit_code == 0, whole.output
    part = [*options, "--rounds", "3", "--system", str(path), "--out", str(tmp_path / "part")]
    assert CliRunner().invoke(main, part).exit_code == 0
    path.unlink()
    resumed = CliRunner().invoke(main, ["resume", str(tmp_path / "part"), "--rounds", "6"])
    assert resumed.exit_code == 0, resumed.output
    from fedvra.runs.files import RunFolder

    runs = [RunFolder(tmp_path / name) for name in ("whole", "part")]
    times = [[m["simulated_time"] for m in each.metrics()] for each in runs]
    assert times[0] == times[1]
    summary = runs[1].summary()
    assert summary.time_to is not None
    assert summary.time_to == time_to(runs[0].metrics(), [5, 99.9])
    assert summary.time_to["5"] == times[0][(summary.rounds_to["5"] or 0) - 1]
    assert summary.simulated_time == times[0][-1]


def test_tables_and_report_have_the_time(tmp_path: Path) -> None:
    path = write(tmp_path, {"step": 0.5})
    out = tmp_path / "out"
    words = ["compare", "digits", "--algorithms", "fedavg,fedvra", "--seeds", "0-1", "--rounds", "2", "--clients", "10"]
    words += [
        "--cohort",
        "3",
        "--steps",
        "2",
        "--targets",
        "5",
        "--system",
        str(path),
        "--out",
        str(out),
        "--workers",
        "1",
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    table = (out / "table.md").read_text()
    assert "simulated seconds to 5%" in table
    assert "1.0" in table.splitlines()[-1]
    page = (out / "report.html").read_text()
    assert '"simulated":[1.0,2.0]' in page.replace(" ", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"step": -1}, "step must be >= 0"),
        ({"up": 0}, "up must be > 0"),
        ({"step": "gamma:2"}, "lognormal:MEDIAN,SIGMA"),
        ({"step": "uniform:3,1"}, "LOW no greater than HIGH"),
        ({"deadline": 0}, "deadline must be > 0"),
        ({"deadline": "soon"}, "deadline must be a number"),
        ({"stepp": 1}, "did you mean 'step'"),
        ({"available": {"duty": 0.5}}, "holds period"),
        ({"available": {"period": 10, "duty": 2}}, "duty must be in"),
        ({"available": {"period": 10, "windows": [[[0, 11]]]}}, "within 0..10"),
        ({"available": {"period": 10, "windows": 3}}, "a list of"),
        ({"trace": "nothing.csv"}, "cannot be read"),
        ("- 1", "must hold lines"),
        ("a: [", "is not YAML"),
    ],
)
def test_refusals(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read_system(write(tmp_path, content))


def test_more_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"such as fv\.System"):
        run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave the deadline out"):
        run(fv.System(deadline=3), fv.FedPD(), sampler=fv.Full())
    with pytest.raises(UsageError, match="cannot be read"):
        read_system(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"fv\.Windows"):
        fv.System(available=3)  # type: ignore[arg-type]
