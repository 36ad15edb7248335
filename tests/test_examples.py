"""The examples do what they say, run as a reader would run them."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedvra.runs.files import RunFolder

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    script = EXAMPLES / "own_algorithm.py"
    assert len(script.read_text().splitlines()) < 40
    shown = subprocess.run(
        [sys.executable, "-W", "error", script, tmp_path / "out"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "| FedVRA, warmed up (warmup=5) |" in shown
    assert "| FedVRA |" in shown
    own, known = (RunFolder(tmp_path / "out" / name / "seed-0") for name in ("warmvra_warmup=5", "fedvra"))
    best = own.summary().best_accuracy
    assert best is not None
    assert best > 0.9
    assert own.metrics()[-1]["test_loss"] != known.metrics()[-1]["test_loss"]
    assert (tmp_path / "out" / "curves.png").exists()


def test_a_model_and_data_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLES / "own_model_and_data.py"))
    history = example["main"]()
    assert history.summary()["final_accuracy"] > 0.9
    assert history.model()(history.x0[:12].reshape(1, 12)).shape == (1, 3)
    assert len(capsys.readouterr().out.splitlines()) == 16


def test_variance_before_and_after_correction(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "variance.py"))
    found = example["main"](tmp_path / "variance.svg", rounds=20, seeds=1)
    assert (tmp_path / "variance.svg").stat().st_size > 10_000
    assert found["FedVRA"].rounds == [5, 10, 15, 20]
    assert found["SCAFFOLD"].mean[-1] < found["FedAvg"].mean[-1] / 2
    assert found["FedVRA"].mean[-1] < found["FedAvg"].mean[-1] / 2


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_fine_tuning_with_lora_sends_kilobytes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    history = runpy.run_path(str(EXAMPLES / "lora.py"))["main"]()
    assert len(history.x0) == 1123
    assert history.metrics[-1]["bytes_up"] == 5 * (4 * 1123 + 8)
    assert history.metrics[-1]["test_accuracy"] > 0.6
    assert "1,123 of 23,078 parameters are trained; 4.4 KiB" in capsys.readouterr().out


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    script = EXAMPLES / "own_task.py"
    options = [
        "--rounds",
        "5",
        "--algorithms",
        "fedvra,fedavg",
        "--out",
        tmp_path / "out",
        "--json",
        "--split",
        "shards:2",
    ]
    command = [sys.executable, "-W", "error", "-m", "fedvra", "compare", f"{script}:task", *options]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [row["finished"] for row in json.loads(shown)["rows"]] == [1, 1]


def test_a_training_loop_of_ones_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    history = runpy.run_path(str(EXAMPLES / "own_loop.py"))["main"]()
    assert history.summary()["final_accuracy"] > 0.9
    assert len({record["local_steps"] for record in history.metrics}) > 3, "hospitals do as much as they like"
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_a_training_loop_by_lightning(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    shown = subprocess.run(
        [sys.executable, EXAMPLES / "own_loop_lightning.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(shown.splitlines()[-1].split()[-1].rstrip("%")) > 85


def test_a_study_of_ones_own_survives_being_killed(tmp_path: Path) -> None:
    script, out = EXAMPLES / "study.py", tmp_path / "runs" / "study"
    assert len(script.read_text().splitlines()) < 25
    command, environment = [sys.executable, "-W", "error", script], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 120
        while len(list(out.rglob("summary.json"))) < 2 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    assert 2 <= len(list(out.rglob("summary.json"))) < 12
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    header = "| algorithm | final % | best % | worst fall | worst_class |"
    assert header in shown
    for label in ("FedVRA", "FedAvg", "SCAFFOLD", "FedDyn"):
        assert f"| {label} |" in shown
    summaries = [RunFolder(path.parent).summary() for path in out.rglob("summary.json")]
    assert [summary.status for summary in summaries] == ["finished"] * 12
    assert any(summary.rounds < 40 for summary in summaries)  # stopped early
    assert (out / "report.html").stat().st_size > 10_000


def test_the_same_study_on_the_command_line(tmp_path: Path) -> None:
    script = EXAMPLES / "study_task.py"
    assert len([line for line in script.read_text().splitlines() if line.strip()]) < 15
    options = [
        "--algorithms",
        "fedvra,fedavg,scaffold,feddyn",
        "--seeds",
        "0-2",
        "--rounds",
        "3",
        "--out",
        tmp_path / "out",
    ]
    command = [sys.executable, "-W", "error", "-m", "fedvra", "compare", f"{script}:task", *options, "--json"]
    shown = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert [row["finished"] for row in shown["rows"]] == [3] * 4
    assert RunFolder(tmp_path / "out" / "fedvra" / "seed-0").config().patience == 5
    assert "worst_class" in (tmp_path / "out" / "table.md").read_text()
