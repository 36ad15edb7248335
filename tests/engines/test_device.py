"""Whole rounds on an accelerator, without one: a device of torch's own kind, made of the host's memory, that claims to be cuda.

``mock_device/mock_device.cpp`` registers it. It computes with the CPU's kernels, so that results can be compared; it refuses to
mix its tensors with the host's, as a GPU does; and it counts the copies between the two.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedvra as fv
from fedvra.core import accelerators
from fedvra.runs.files import RunFolder

HERE = Path(__file__).parent / "mock_device"
TORCH = Path(torch.__file__).parent
SCALARS_PER_ROUND = 9
"""What the server itself reads in a round: losses, the test data's figures, whether x0 is finite, what auto looks at."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of programs on a machine with the device."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: the mock device cannot be built")
    library = tmp_path_factory.mktemp("mock") / "mock_device.so"
    includes = [f"-I{TORCH / 'include'}", f"-I{TORCH / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-lc10", "-ltorch_cpu"]
    build = [compiler, "-O1", "-fPIC", "-shared", "-std=c++20", "-w", *includes, str(HERE / "mock_device.cpp")]
    subprocess.run([*build, "-o", str(library), *libraries], check=True, timeout=600)
    kept = {name: value for name, value in os.environ.items() if name != accelerators.VARIABLE}
    return {**kept, "MOCK_DEVICE": str(library)}


@pytest.fixture(scope="module")
def report(machine: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program(machine, "rounds.py").stdout)
    return found


def program(machine: dict[str, str], *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of the programs of ``mock_device`` to its end."""
    command = (sys.executable, HERE / command[0], *command[1:])
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=machine)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_every_algorithm_path_and_kind_of_run_has_the_numbers_of_the_cpu(report: dict[str, Any]) -> None:
    cases = report["cases"]
    assert len(cases) > 40
    wrong = {name: case for name, case in cases.items() if case["apart"] > 1e-6 or not case["accuracy"]}
    assert not wrong
    left = {name: case["paths"] for name, case in cases.items() if case["paths"][0] != case["paths"][1]}
    assert not left, "the device takes the paths that the CPU takes"


def test_the_device_refuses_to_mix(report: dict[str, Any]) -> None:
    """Or the test above would show little."""
    assert "same device" in report["mixing"]
    assert "same device" in report["mixing in place"]


def test_nobody_waits_for_single_clients(report: dict[str, Any]) -> None:
    """Copies to the host do not grow with the cohort; those to the device are its clients' samples and indices."""
    for path, by_cohort in report["copies"].items():
        for cohort, (to_device, to_host, streamed) in by_cohort.items():
            assert to_host <= SCALARS_PER_ROUND, (path, cohort)
            assert to_device <= 6 + 5 * int(cohort), (path, cohort)
            assert streamed == 0, "rows of clients are on the device"


def test_rows_that_do_not_fit_are_streamed(report: dict[str, Any]) -> None:
    _, to_host, streamed = report["streamed"]
    assert to_host <= SCALARS_PER_ROUND
    assert streamed == 8, "one new dual for each client of the cohort, and nobody waits for it"


def test_the_board_has_as_many_places_as_a_cohort_has_parts(report: dict[str, Any]) -> None:
    assert report["largest"] <= max(4 * 2 * report["parameters"] * 4, 160 * 36 * 4)


def test_a_run_in_a_folder_is_resumed_on_the_device(machine: dict[str, str], tmp_path: Path) -> None:
    """Every checkpoint looks at the model. Beside it, the same run by two workers on the CPU."""
    run = ("command.py", "run", "digits", "--clients", "20", "--cohort", "5", "--model", "linear")
    device, cpu = tmp_path / "device", tmp_path / "cpu"
    program(machine, *run, "--rounds", "2", "--device", "cuda", "--out", device)
    program(machine, "command.py", "resume", device, "--rounds", "3")
    told = program(machine, *run, "--rounds", "3", "--workers", "2", "--out", cpu)
    # Torch would not let workers be forked if it saw the device: the command line hides what a run does not want.
    assert "one process does all the work" not in told.stderr
    there, here = (RunFolder(each).metrics() for each in (device, cpu))
    assert [each["test_loss"] for each in there] == pytest.approx([each["test_loss"] for each in here], rel=1e-5)


def test_beside_a_gpu_one_process_computes_on_the_cpu_and_says_why(machine: dict[str, str]) -> None:
    """Where autograd has started threads for a GPU, torch refuses to compute in forked processes."""
    done = program(machine, "beside.py")
    one, two = done.stdout.split()
    assert one == two
    assert done.stderr.count("torch sees a GPU") == 1


def test_the_doctor_compares_the_device_with_the_cpu_and_times_both(machine: dict[str, str]) -> None:
    command = ("command.py", "doctor", "--device", "cuda", "--workloads", "w3", "--passes", "1", "--json")
    found = json.loads(program(machine, *command).stdout)
    assert found["about"]["name"] == "the host in disguise"
    assert [each["good"] for each in found["comparison"]] == [True] * 12
    assert [each["workload"] for each in found["timing"]] == ["w3"]


def test_what_computes_on_the_cpu_says_so() -> None:
    costs = fv.Quadratic(torch.ones(4, 1, 1), torch.ones(4, 1))
    with pytest.raises(fv.UsageError, match="Quadratic computes on the CPU"):
        fv.simulate(fv.FedAvg(), problem=costs, sampler=fv.Full(), work=fv.Steps(1), lr=0.1, rounds=1,
                    solver=fv.SolverSettings(device="cuda"))  # fmt: skip
