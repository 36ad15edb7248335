"""Runs that are there are found again: what counts as the same run, and what serves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fedvra.core.errors import UsageError
from fedvra.reproduce import recipe as recipes
from fedvra.runs.cache import Cache, fingerprint
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder
from fedvra.studies.execution import execute
from tiny_recipe import SMALL, TINY, changed, fedvra, write_recipe


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 7},
        {"workers": 3},
        {"targets": [50]},
        {"checkpoint_every": 1},
        {"data": "elsewhere"},
        {"state_memory": "1GB"},
        {"weight_decay": "0.0010"},
        {"set": {"alpha": 1}},
    ],
    ids=str,
)
def test_what_changes_no_number_does_not_change_the_fingerprint(change: dict[str, Any]) -> None:
    base = {**SMALL, "algorithm": "feddyn", "set": {"alpha": 1.0}}
    assert fingerprint(configure(base)) == fingerprint(configure(base, change))


@pytest.mark.parametrize(
    "change",
    [
        {"task": "digits-ssl"},
        {"algorithm": "fedadmm"},
        {"set": {"alpha": 0.2}},
        {"clients": 21},
        {"cohort": 6},
        {"sampler": "full"},
        {"split": "iid"},
        {"epochs": 2},
        {"steps": 1},
        {"batch_size": 11},
        {"lr": 0.06},
        {"weight_decay": 0},
        {"weights": "samples"},
        {"model": "mlp"},
        {"seed": 1},
        {"drop": 0.1},
        {"eval_every": 2},
        {"precision": "bfloat16"},
        {"state_dtype": "bfloat16"},
    ],
    ids=str,
)
def test_what_changes_numbers_changes_the_fingerprint(change: dict[str, Any]) -> None:
    base = {**SMALL, "algorithm": "feddyn", "set": {"alpha": 0.1}}
    assert fingerprint(configure(base)) != fingerprint(configure(base, change))


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that were not made by reproduce: one that went on longer than asked, one that blew up, and other people's files."""
    folder = tmp_path_factory.mktemp("somewhere")
    execute(configure(SMALL, {"algorithm": "fedavg", "rounds": 6, "seed": 0}), folder / "a" / "mine")
    execute(configure(SMALL, {"set": {"a": 1e30}, "rounds": 30, "seed": 0}), folder / "burst")
    (folder / "odd").mkdir()
    (folder / "odd" / "config.yaml").write_text("task: no-such-task\n")
    (folder / "notes.json").write_text('{"recipe": "for soup"}')
    (folder / "broken.json").write_text("{")
    return folder


def test_a_longer_run_serves_and_is_cut(somewhere: Path) -> None:
    cache = Cache([somewhere])
    found = cache.find(configure(SMALL, {"algorithm": "fedavg", "rounds": 4}))
    assert found is not None
    assert (found.rounds, found.status, found.where) == (4, "finished", somewhere / "a" / "mine")
    assert found.metrics == RunFolder(found.where).metrics()[:4]


def test_a_shorter_run_does_not_serve_but_is_the_best_there_is(somewhere: Path) -> None:
    cache, config = Cache([somewhere]), configure(SMALL, {"algorithm": "fedavg", "rounds": 9})
    assert cache.find(config) is None
    best = cache.best(config)
    assert best is not None
    assert best.rounds == 6
    assert cache.best(configure(SMALL, {"algorithm": "fedavg", "seed": 1})) is None


def test_a_run_that_diverged_serves_any_number_of_rounds(somewhere: Path) -> None:
    found = Cache([somewhere]).find(configure(SMALL, {"set": {"a": 1e30}, "rounds": 400}))
    assert found is not None
    assert found.status == "diverged"
    assert found.rounds < 30


def test_a_run_that_was_cut_short_serves_for_the_rounds_it_has(somewhere: Path, tmp_path: Path) -> None:
    begun = RunFolder(tmp_path / "begun")
    config = configure(SMALL, {"algorithm": "fedavg", "rounds": 6})
    execute(config, begun.path)
    begun.summary_file.unlink()  # as while it is going on, or after a crash
    begun.rewind(3)
    cache = Cache([tmp_path])
    assert cache.find(dataclasses.replace(config, rounds=3)) is not None
    assert cache.find(dataclasses.replace(config, rounds=4)) is None
    assert cache.best(dataclasses.replace(config, rounds=4)) is None


def test_results_with_a_run_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    run = {"config": SMALL, "rounds": 2, "status": "finished", "seconds": 1.0, "metrics": {"test_accuracy": [0.5]}}
    (tmp_path / "r.json").write_text(json.dumps({"recipe": "r", "runs": [run]}))
    with pytest.raises(UsageError, match="unequal length"):
        Cache([tmp_path])
    (tmp_path / "r.json").write_text(json.dumps({"recipe": "r", "runs": [{"rounds": 2}]}))
    with pytest.raises(UsageError, match="cannot be read"):
        Cache([tmp_path])


def test_all_that_there_is(somewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recipe(tmp_path, name="one")
    borrowed = {"name": "b", "title": "Borrowed", "use": "one/plain"}
    write_recipe(
        tmp_path, {name: TINY[name] for name in ("title", "says", "seeds", "rounds")} | {"cases": [borrowed]}, "two"
    )
    write_recipe(tmp_path, changed(common={**TINY["common"], "lr": 0.07}), name="three")
    monkeypatch.setattr(recipes, "folder", lambda: tmp_path)
    (tmp_path / "page.md").write_text("<!-- one -->\n<!-- /one -->\n")
    arguments = ("--no-run", "--runs", somewhere, "--out", tmp_path / "out", "--page", tmp_path / "page.md", "--json")
    result = fedvra("all", *arguments)
    assert [each["recipe"] for each in json.loads(result.stdout)] == ["one", "two"]
    assert json.loads((tmp_path / "out" / "two.json").read_text())["runs"] == []  # they are in one.json
    assert "FedAvg" in (tmp_path / "page.md").read_text()
