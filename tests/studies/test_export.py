"""The model of a run on disk, as a file: the one that the run is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import fedvra as fv
from fedvra.cli import main
from fedvra.core.errors import UsageError
from fedvra.engines.federation import Federation
from fedvra.runs.config import build, configure
from fedvra.studies.execution import execute, export
from small_run import small

pytestmark = pytest.mark.usefixtures("no_picture")


@pytest.mark.parametrize("deploy", ["x0", "mean", "ema:0.5"])
def test_it_is_the_model_that_the_run_is_for(deploy: str, tmp_path: Path) -> None:
    config = small(deploy=deploy, rounds=4)
    execute(config, tmp_path / "run")
    file, rounds = export(tmp_path / "run", tmp_path / "exported" / "model.safetensors")
    again = Federation(build(config), workers=1)
    for _ in range(rounds):
        again.round()
    again.close()
    expected = again.state.x0 if again.state.deployed is None else again.state.deployed.x
    assert rounds == 4
    assert (again.state.deployed is None) == (deploy == "x0")
    assert torch.equal(torch.cat([each.reshape(-1) for each in _of(again, file)]), expected)


def _of(federation: Federation, file: Path) -> list[torch.Tensor]:
    module = fv.load_model(file, federation.experiment.problem.to_module(federation.state.x0, None))  # type: ignore[attr-defined]
    return [parameter.detach() for parameter in module.parameters()]


def test_of_an_interrupted_run_it_is_that_of_the_last_checkpoint(tmp_path: Path) -> None:
    def stop(record: fv.Record) -> None:
        if record["round"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(small(), tmp_path / "run", [stop])
    execute(small(rounds=6), tmp_path / "six")
    file, rounds = export(tmp_path / "run", tmp_path / "run.safetensors")
    assert rounds == 6
    assert file.read_bytes() == export(tmp_path / "six", tmp_path / "six.safetensors")[0].read_bytes()


def test_before_the_first_checkpoint_there_is_none(tmp_path: Path) -> None:
    execute(small(rounds=0), tmp_path / "run")
    with pytest.raises(UsageError, match="has no checkpoint to export: `fedvra resume` comes to one"):
        export(tmp_path / "run", tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_without_a_module_it_is_a_vector(tmp_path: Path) -> None:
    execute(configure({"task": "blobs-clustering", "rounds": 1, "workers": 1}), tmp_path / "run")
    assert list(load_file(export(tmp_path / "run", tmp_path / "model.safetensors")[0])) == ["x0"]


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    execute(small(rounds=2), "run")
    said = CliRunner().invoke(main, ["export", "run"])
    assert said.output == "Model: model.safetensors (the mean of the clients' models after round 2)\n"
    told = CliRunner().invoke(main, ["export", "run", "--out", "other.safetensors", "--json"])
    assert json.loads(told.output) == {"model": "other.safetensors", "round": 2, "deploy": "mean"}
    assert Path("model.safetensors").read_bytes() == Path("other.safetensors").read_bytes()
    for args, why in ((["nowhere"], "no run in nowhere"), (["run", "--out", "model.pt"], "ends in .safetensors")):
        refused = CliRunner().invoke(main, ["export", *args])
        assert refused.exit_code == 2
        assert why in refused.output
