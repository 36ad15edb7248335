"""What is offered to be deployed is right: options that exist, doors that are closed, and paths that agree."""

from __future__ import annotations

import configparser
import importlib
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

import fedvra as fv
from fedvra.cli.federation import command as federation

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
UNITS = sorted((EXAMPLES / "deploy" / "systemd").glob("*.service"))
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((EXAMPLES / "deploy" / "compose.yaml").read_text())["services"]
GIVEN = {"SERVER": "server.example", "NODE_CONFIG": 'partition-id=0 data-file="/d" fedvra-folder="/f"', "CLIENT": "0"}


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text().replace("\\\n", " "))
    return parser["Service"]


def commands() -> dict[str, list[str]]:
    found = {path.stem: shlex.split(unit(path)["ExecStart"]) for path in UNITS}
    found |= {name: [*service["entrypoint"], *service["command"]] for name, service in SERVICES.items()}
    fill = re.compile(r"\$\{(\w+)(?::-[^}]*)?\}")
    return {name: [fill.sub(lambda m: GIVEN[m[1]], word) for word in words] for name, words in found.items()}


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_are_those_of_the_command(name: str) -> None:
    program, *words = COMMANDS[name]
    match Path(program).name:
        case "flower-superlink":
            given = _parse_args_run_superlink().parse_args(words)
            assert given.host == "127.0.0.1"
            assert given.enable_supernode_auth
            assert given.ssl_certfile
        case "flower-supernode":
            given = _parse_args_run_supernode().parse_args(words)
            assert given.superlink == "server.example:8443"
            assert (given.host, given.port, given.isolation) == ("127.0.0.1", 9094, "process")
            assert given.trusted_entities
            assert given.auth_supernode_private_key
            assert given.superexec_auth_secret_file.endswith("worker.secret")
            assert given.node_config.startswith("partition-id=0 data-file=")
        case "fedvra":
            made = federation.commands[words[1]].make_context(words[1], words[2:])
            if words[1] == "worker":
                assert made.params["supernode"] == "127.0.0.1:9094"
                assert made.params["secret_file"].endswith("worker.secret")
            else:
                assert (made.params["listen"], made.params["superlink"]) == ("0.0.0.0:8443", "127.0.0.1:8000")
        case other:
            raise AssertionError(other)


def test_the_gate_is_the_only_open_door() -> None:
    assert {name: service.get("ports") for name, service in SERVICES.items() if "ports" in service} == {
        "superlink": ["8443:8443"]  # whose network the gate shares
    }
    assert SERVICES["gate"]["network_mode"] == "service:superlink"
    assert SERVICES["worker"]["network_mode"] == "service:supernode"
    for service in SERVICES.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("."))


def test_only_the_worker_sees_the_data() -> None:
    assert [name for name, service in SERVICES.items() if any(":/data" in v for v in service["volumes"])] == ["worker"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_run_as_nobody_special(path: Path) -> None:
    found = unit(path)
    assert found["User"] == "fedvra"
    assert found["ProtectSystem"] == "strict"
    assert found["UMask"] == "0077"


def test_the_made_up_patients_can_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example without its processes: the same problem and algorithm in the simulator, its model tested as there."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "flower"))
    example = runpy.run_path(str(EXAMPLES / "flower" / "run.py"))
    made = [example["make_up"](i, 150 * (i + 1)) for i in range(3)]
    inputs = np.concatenate([each["inputs"] for each in made]).astype(np.float32)
    targets, whose = np.concatenate([each["targets"] for each in made]), np.repeat(range(3), [150, 300, 450])
    data = fv.split((inputs, targets), fv.ByColumn(whose), clients=3, seed=0)
    problem = importlib.import_module("hospitals.problem").problem
    history = fv.simulate(
        fv.FedVRA(gamma=0.1, a=5),
        problem=problem,
        data=data,
        sampler=fv.Full(),
        work=fv.Epochs(2),
        lr=0.05,
        batch_size=20,
        weights="samples",
        rounds=5,
        workers=1,
    )
    history.save(tmp_path / "model.safetensors")
    assert example["accuracy"](tmp_path / "model.safetensors", 3) > 0.7


@pytest.mark.slow
def test_the_example_runs_in_one_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "flower"))
    found = runpy.run_path(str(EXAMPLES / "flower" / "run.py"))["main"]()
    shown = capsys.readouterr().out
    assert "round 5: 3 of 3 counted" in shown
    assert "audit: the duals add up" in shown
    assert found > 0.7
