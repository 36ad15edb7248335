"""A federation's run on disk: void rounds, records that go on over a restart, status, report and the model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import fedvra as fv
from fedvra.cli import main
from fedvra.flower import Strategy, client_app
from fedvra.flower.members import expel
from fedvra.flower.protocol import Errand
from fedvra.runs.files import RunFolder
from flower_grid import FakeGrid, Node, make_nodes, quadratic


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def run(folder: Path, grid: FakeGrid, rounds: int, **options: Any) -> Strategy:
    given: dict[str, Any] = {
        "problem": quadratic(), "clients": 3, "sampler": fv.Full(), "work": fv.Steps(3), "lr": 0.05,
        "folder": folder / "server", "wait": 0, **options,
    }  # fmt: skip
    strategy = Strategy(fv.FedVRA(gamma=0.5, a=2), **given)
    strategy.start(grid, num_rounds=rounds, timeout=0.01)
    return strategy


def silent_in(*rounds: int) -> Any:
    return lambda order: "silent" if order.errand == Errand.TRAIN and order.round + 1 in rounds else ""


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "server" / "metrics.jsonl").read_text().splitlines()]


# -- void rounds -------------------------------------------------------------------------------------------------------------


def test_a_void_round_is_recorded_and_does_not_use_up_rounds(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path), fault=silent_in(2, 3))
    strategy = run(tmp_path, grid, 4)
    assert [record["counted"] for record in written(tmp_path)] == [[0, 1, 2], [], [], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert [record["round"] for record in written(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert (strategy.books.round, strategy.books.voids) == (6, 2)
    assert written(tmp_path)[1]["lost"] == dict.fromkeys("012", "did not answer in time")
    assert strategy.audit(grid).relative < 1e-12
    again = run(tmp_path, grid, 5)  # one more round that counts, after a restart
    assert (again.books.round, again.books.voids) == (7, 2)


def test_a_run_in_which_nobody_counts_stops_with_a_reason_and_can_be_started_again(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path), fault=silent_in(2, 3, 4, 5))
    strategy = run(tmp_path, grid, 3, max_void=3)
    assert strategy.books.round == 4
    reason = "nobody counted in 3 rounds in a row (client 0 did not answer in time"
    assert written(tmp_path)[-1]["stopped"].startswith(reason)
    summary = RunFolder(tmp_path / "server").summary()
    assert (summary.status, summary.rounds) == ("finished", 4)
    assert summary.stopped is not None
    assert summary.stopped.startswith(reason)
    strategy = run(tmp_path, grid, 3, max_void=3)  # a void round more, and then two that count
    assert (strategy.books.round, strategy.books.voids) == (7, 4)
    assert RunFolder(tmp_path / "server").summary().stopped is None


def test_nobody_connected_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Void rounds in no time would use up their number before anybody could come back."""
    grid, gathered = FakeGrid(make_nodes(quadratic(), tmp_path)), []
    strategy = run(tmp_path, grid, 1)

    def back(*given: Any) -> None:
        gathered.append(strategy.books.round)
        grid.offline = set()

    grid.offline = {100, 101, 102}
    monkeypatch.setattr(strategy.roster, "gather", back)
    monkeypatch.setattr(strategy, "open", lambda *given: None)
    strategy.start(grid, num_rounds=3, timeout=0.01)
    assert gathered == [2]
    assert [record["counted"] for record in strategy.records] == [[0, 1, 2], [], [0, 1, 2], [0, 1, 2]]


def test_a_draw_of_nobody_is_a_round_as_in_the_simulator(tmp_path: Path) -> None:
    sampler = fv.Replay([[0, 1], [], [2], [0]])
    strategy = run(tmp_path, FakeGrid(make_nodes(quadratic(), tmp_path)), 4, sampler=sampler)
    assert [record["counted"] for record in strategy.records] == [[0, 1], [], [2], [0]]
    assert strategy.books.voids == 0


# -- records over restarts -----------------------------------------------------------------------------------------------------


class Died(BaseException):
    pass


def test_the_files_are_those_of_the_simulator(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Steps(3), "lr": 0.05}
    run(tmp_path, FakeGrid(make_nodes(quadratic(), tmp_path)), 4, **options)
    expected = fv.simulate(
        fv.FedVRA(gamma=0.5, a=2), problem=quadratic(), rounds=4, workers=1, out=tmp_path / "simulated", **options
    )
    for ours, theirs in zip(written(tmp_path), expected.metrics, strict=True):
        for name in ("round", "cohort", "bytes_up", "bytes_down", "bytes_up_original", "local_steps", "test_accuracy"):
            assert ours[name] == theirs[name], name
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-12)
        assert ours["seconds"] >= ours["seconds_training"] > 0
    ours, theirs = (RunFolder(tmp_path / name).summary() for name in ("server", "simulated"))
    assert (ours.rounds, ours.status, ours.bytes_up) == (theirs.rounds, theirs.status, theirs.bytes_up)
    page = (tmp_path / "server" / "report.html").read_text()
    assert "FedVRA" in page
    made = CliRunner().invoke(main, ["report", str(tmp_path / "server"), "--out", str(tmp_path / "again.html")])
    assert made.exit_code == 0, made.output


@pytest.mark.parametrize("when", ["before the books", "after the books"])
def test_records_go_on_after_a_crash(when: str, tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    first = run(tmp_path, grid, 2)

    def die() -> None:
        if when == "after the books":
            first.books.save(first.folder)
        raise Died

    first.save = die  # type: ignore[method-assign]
    with suppress(Died):
        first.play(grid)
    second = run(tmp_path, grid, 5)
    assert [record["round"] for record in written(tmp_path)] == [1, 2, 3, 4, 5]
    assert all(record["counted"] == [0, 1, 2] for record in written(tmp_path))
    assert [record["round"] for record in second.records] == [1, 2, 3, 4, 5]
    whole = run(tmp_path / "whole", FakeGrid(make_nodes(quadratic(), tmp_path / "whole")), 5)
    torch.testing.assert_close(second.books.x0, whole.books.x0, rtol=0, atol=0)


def test_a_record_cut_short_is_written_again(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    run(tmp_path, grid, 3)
    file = tmp_path / "server" / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    run(tmp_path, grid, 4)
    records = written(tmp_path)
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert records[2]["counted"] == [0, 1, 2]  # from the books


# -- the model and the status ----------------------------------------------------------------------------------------------


def test_the_model_is_exported_at_every_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(12, 4, generator=rng), torch.randint(0, 3, (12,), generator=rng)
    data = fv.Dataset("own", inputs, targets, classes=3)
    problem = fv.Supervised(torch.nn.Linear(4, 3))
    app = client_app(problem=problem, data=data)
    grid = FakeGrid({100 + i: Node(i, tmp_path / f"node{i}", app) for i in range(3)})
    seen = []

    def look(record: dict[str, Any]) -> None:
        seen.append(load_file(tmp_path / "server" / "model.safetensors")["weight"].flatten())

    strategy = run(tmp_path, grid, 3, problem=problem, callbacks=[look])
    assert len({tuple(weight.tolist()) for weight in seen}) == 3
    model = fv.load_model(tmp_path / "server" / "model.safetensors", torch.nn.Linear(4, 3))
    flat = torch.cat([parameter.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(flat.detach(), strategy.books.model.x, rtol=0, atol=0)


def said(*words: Any) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_status(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(4), tmp_path), fault=silent_in(3))
    grid.offline = {103}
    run(tmp_path, grid, 3, problem=quadratic(4), max_clients=4, audit_every=2)
    grid.offline = set()
    expel(tmp_path / "server", 0)
    run(tmp_path, grid, 4, problem=quadratic(4), max_clients=4, audit_every=2)
    expel(tmp_path / "server", 2)
    found = json.loads(said("federation", "status", tmp_path / "server", "--json"))
    assert (found["round"], found["void_rounds"], found["run"]) == (5, 1, "finished")
    states = {each["client"]: (each["state"], each["joined"], each["left"]) for each in found["members"]}
    assert states == {0: ("left", 0, 4), 1: ("there", 0, None), 2: ("leaving", 0, None), 3: ("there", 4, None)}
    assert {each["client"]: each["counted_last"] for each in found["members"]} == {0: 4, 1: 5, 2: 5, 3: 5}
    assert found["audit"]["round"] == 4
    assert found["audit"]["gap"] < 1e-12
    assert found["model"].endswith("model.safetensors")
    shown = said("federation", "status", tmp_path / "server")
    assert "after round 5 (1 void); the run is finished" in shown
    assert "audit after round 4" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-4:]] == [
        ["0", "left"], ["1", "there"], ["2", "leaving"], ["3", "there"]
    ]  # fmt: skip


def test_status_of_a_run_under_way_and_of_nothing(tmp_path: Path) -> None:
    grid, seen = FakeGrid(make_nodes(quadratic(), tmp_path)), []

    def look(record: dict[str, Any]) -> None:
        seen.append(json.loads(said("federation", "status", tmp_path / "server", "--json")))

    run(tmp_path, grid, 2, callbacks=[look])
    assert [(each["run"], each["round"]) for each in seen] == [("under way", 1), ("under way", 2)]
    nothing = CliRunner().invoke(main, ["federation", "status", str(tmp_path / "none")])
    assert nothing.exit_code == 2
    assert "there are no books in" in nothing.output
