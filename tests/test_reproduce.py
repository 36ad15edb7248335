"""Recipes, the cache of runs, what is run and what is not, and a table that says where it differs from the paper."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from matplotlib.image import imread

from crashes import Child, lines, untimed
from fedvra.cli import main
from fedvra.config import configure
from fedvra.display import make_console
from fedvra.errors import FedvraError, UsageError
from fedvra.reproduce import recipe as recipes
from fedvra.reproduce.cache import Cache, Stored, fingerprint, folder_name
from fedvra.reproduce.driver import Request, reproduce
from fedvra.reproduce.estimate import estimate
from fedvra.reproduce.figures import draw
from fedvra.reproduce.plan import Wanted, plan
from fedvra.reproduce.recipe import Printed, Recipe
from fedvra.reproduce.table import ResultTable, compare_rounds, read_accuracy
from fedvra.runfiles import RunFolder, Status
from fedvra.runs import execute

ROOT = Path(__file__).parents[1]
SMALL = {"task": "digits", "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}
TINY: dict[str, Any] = {
    "title": "Table T",
    "says": "FedVRA is faster.",
    "seeds": 2,
    "rounds": 4,
    "quick": {"seeds": 1, "rounds": 2},
    "targets": [20, 100],
    "common": {name: value for name, value in SMALL.items() if name != "workers"},
    "rows": [
        {"name": "fedavg", "algorithm": "fedavg"},
        {"name": "fedvra", "algorithm": "fedvra", "label": "FedVRA, a = 2", "set": {"gamma": 0.1, "a": 2, "d": "1/p"}},
    ],
    "cases": [{"name": "plain", "title": "Non-IID", "paper": {"fedavg": {"accuracy": [99.0, 0.1], 20: 40, 100: ">4"}}}],
}


def write_recipe(folder: Path, content: Any = TINY, name: str = "tiny") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def fedvra(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", *map(str, args)])


def without_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be run."""

    def refuse(*args: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("fedvra.reproduce.jobs._start", refuse)


# -- recipes ------------------------------------------------------------------------------------------------------------


def test_there_is_a_recipe_for_every_table_and_figure() -> None:
    assert {"table2", "table3", "fig2", "fig3", "fig4", "readings", "participation"} <= set(recipes.names())


@pytest.mark.parametrize("name", recipes.names())
def test_every_row_of_every_recipe_can_be_run(name: str) -> None:
    recipe = recipes.load(name)
    wanted = plan(recipe, seeds=1, rounds=1)
    assert len(wanted) == sum(len(case.rows) for case in recipe.cases)
    for each in wanted:
        # Defaults of algorithms and tasks may change; what a recipe stands for may not.
        said = {*each.case.options, *each.row.options}
        assert {"task", "algorithm", "model", "split", "epochs", "batch_size", "lr", "weight_decay"} <= said
        assert set(each.row.options.get("set", {})) == set(each.config.set)


def test_table3_holds_the_numbers_of_the_paper() -> None:
    table3 = recipes.load("table3")
    assert (table3.seeds, table3.rounds) == (5, 500)
    assert sum(len(cells) for case in table3.cases for cells in case.paper.values()) == 40
    assert table3.case("noniid").paper["scaffold"]["97"] == Printed(485)
    assert table3.case("hlu").paper["fedprox"] == {
        "accuracy": Printed(96.15, 0.36),
        "90": Printed(49),
        "95": Printed(280),
        "97": Printed(500, beyond=True),
    }


def test_figure_3_is_made_of_the_runs_of_the_tables() -> None:
    its = {fingerprint(each.config) for each in plan(recipes.load("fig3"), 5, 500)}
    tables = {fingerprint(w.config) for name in ("table2", "table3") for w in plan(recipes.load(name), 5, 500)}
    assert len(its) == 100
    assert its < tables


def changed(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "does not say seeds"),
        (changed(rounds="many"), "rounds must be a whole number, got 'many'"),
        (changed(seeds=0), "seeds and rounds must be at least 1"),
        (changed(colour="red"), "colour means nothing here"),
        (changed(accuracy="worst"), "accuracy must be one of final, best, last10, got 'worst'"),
        (changed(common={"taks": "digits"}), "there is no option of fedvra run.* did you mean 'task'"),
        (changed(rows=[]), "say which rows there are"),
        (changed(rows=[*TINY["rows"], *TINY["rows"]]), "fedavg is there twice"),
        (changed(cases=[{"name": "x"}]), "does not say title"),
        (changed(cases=[{**TINY["cases"][0], "paper": {"fedavgg": {}}}]), "did you mean 'fedavg'"),
        (changed(cases=[{**TINY["cases"][0], "paper": {"fedavg": {20: "soon"}}}]), 'write a number, .* or ">500"'),
        (changed(cases=[{"name": "x", "title": "X", "use": "tiny2/plain", "only": ["fedprox"]}]), "has no row fedprox"),
        (changed(cases=[{"name": "x", "title": "X", "use": "tiny2/nothing"}]), "there is no case of tiny2 'nothing'"),
        (["a list"], "must hold options as `name: value` lines"),
    ],
)
def test_recipes_that_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    write_recipe(tmp_path, name="tiny2")
    with pytest.raises(UsageError, match=message):
        recipes.read(write_recipe(tmp_path, content))


def test_some_rows_only(tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path))
    for pattern in ("fedvra", "plain/fedvra", "*/fedv??"):
        assert [each.row.name for each in plan(recipe, 2, 4, [pattern])] == ["fedvra", "fedvra"]
    with pytest.raises(
        UsageError, match="tiny has nothing named 'fedpd'; --only takes any of plain/fedavg, plain/fedvra"
    ):
        plan(recipe, 2, 4, ["plain", "fedpd"])


def test_a_wheel_carries_the_recipes(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds wheels, is not installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    code = "from fedvra.reproduce import recipe; print(recipe.folder(), *recipe.names(), recipe.load('table3').title)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.startswith(str(tmp_path / "installed" / "fedvra" / "recipes"))
    assert all(name in said for name in (*recipes.names(), "Table 3: MNIST"))


# -- the cache ----------------------------------------------------------------------------------------------------------


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


# -- measured beside printed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "measured", "beyond", "played", "verdict"),
    [
        (60, 69, False, 500, "within"),
        (60, 69.1, False, 500, "off"),
        (60, 51, False, 500, "within"),
        (60, 50.9, False, 500, "off"),
        (">500", 480, False, 500, "within"),
        (">500", 425.8, False, 500, "off"),
        (">500", 501, True, 500, "within"),
        (">500", 490, True, 500, "within"),
        (">500", 201, True, 200, "open"),
        (485, 501, True, 500, "open"),
        (300, 501, True, 500, "off"),
        (300, 101, True, 100, "open"),
    ],
)
def test_which_rounds_differ(paper: Any, measured: float, beyond: bool, played: int, verdict: str) -> None:
    assert compare_rounds(measured, beyond, Printed.read("", paper), played) == verdict


def stored(*percent: float, status: Status = "finished") -> Stored:
    metrics = [{"round": r + 1, "test_accuracy": value / 100} for r, value in enumerate(percent)]
    return Stored({}, status, metrics, 1.0, Path("nowhere"))


def in_table(recipe: Recipe, **runs: list[Stored]) -> ResultTable:
    wanted: dict[str, Wanted] = {each.row.name: each for each in plan(recipe, 1, 4)}
    return ResultTable.of(recipe, [(wanted[name], run) for name, some in runs.items() for run in some])


@pytest.fixture
def tiny(tmp_path: Path) -> Recipe:
    return recipes.read(write_recipe(tmp_path))


def test_the_table_says_what_was_measured_and_marks_what_differs(tiny: Recipe) -> None:
    table = in_table(
        tiny, fedavg=[stored(10, 15, 98, 99.6), stored(10, 30, 98, 99.2)], fedvra=[stored(25, 100, 99, 98)]
    )
    assert table.markdown().splitlines() == [
        "| case | algorithm | seeds | rounds | last round % | paper | to 20% | paper | to 100% | paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| Non-IID | FedAvg | 2 | 4 | 99.40 ± 0.28 | 99.00 ± 0.10 | 2.5 ± 0.7 * | 40 | >4 | >4 |",
        "| Non-IID | FedVRA, a = 2 | 1 | 4 | 98.00 |  | 1.0 |  | 2.0 |  |",
    ]
    assert table.verdicts() == {"within": 2, "off": 1, "open": 0}
    assert table.score() == (
        "2 of 3 cells agree with the paper's, 1 differ (*) by more than 15% in rounds or 0.5 points."
    )


def test_accuracies_half_a_point_away_are_marked(tiny: Recipe) -> None:
    for final, mark in ((98.51, ""), (98.49, " *"), (99.49, ""), (99.51, " *")):
        cell = in_table(tiny, fedavg=[stored(10, 20, 30, final)]).lines[0].cells["accuracy"]
        assert cell.text(2) == f"{final:.2f}{mark}"


def test_accuracies_of_shorter_runs_are_not_compared(tiny: Recipe) -> None:
    table = in_table(tiny, fedavg=[stored(10, 20, 30, 99), stored(10, 22)])
    accuracy = table.lines[0].cells["accuracy"]
    assert accuracy.verdict == "open"
    assert accuracy.measured.mean == pytest.approx(21)  # type: ignore[union-attr]  # after the two rounds that both have
    assert str(table.score()).endswith("; 2 cannot be told from runs of this length.")


def test_a_mean_over_seeds_that_did_not_all_get_there_is_a_bound(tiny: Recipe) -> None:
    line = in_table(tiny, fedvra=[stored(10, 20, 100, 90), stored(10, 20, 30, 40)]).lines[0]
    assert line.cells["100"].text(1) == ">4 (1 of 2)"  # (3 + 5)/2
    assert line.cells["100"].measured.mean == 4  # type: ignore[union-attr]


def test_a_run_that_diverged_is_named_and_counts_as_one_that_never_gets_there(tiny: Recipe) -> None:
    table = in_table(tiny, fedvra=[stored(25, 100, 100, 98), stored(10, status="diverged")])
    assert "| FedVRA, a = 2 [1 diverged] | 2 | 4 | 98.00 |" in table.markdown()
    assert table.lines[0].cells["100"].text(1) == ">4 (1 of 2)"  # (2 + 5)/2, rounded


def test_accuracy_read_in_three_ways(tiny: Recipe) -> None:
    run = stored(*range(50, 62), 55)
    assert read_accuracy(run, "final") == 0.55
    assert read_accuracy(run, "best") == 0.61
    assert read_accuracy(run, "last10") == pytest.approx((sum(range(53, 62)) + 55) / 1000)
    assert read_accuracy(stored(10, status="diverged"), "final") is None
    text = in_table(tiny, fedavg=[stored(10, 20, 99.5, 98)]).readings_markdown()
    assert "| Non-IID | FedAvg | 98.00 | 99.50 | 56.88 | 99.00 ± 0.10 |" in text
    assert "| mean distance |  | 1.000 | 0.500 | 42.125 |  |" in text
    assert in_table(tiny, fedvra=[stored(1, 2, 3, 4)]).readings_markdown() == ""


def test_a_figure_has_a_panel_for_each_case_with_runs(tmp_path: Path) -> None:
    two = changed(cases=[{"name": name, "title": name} for name in ("one", "two", "three")])
    recipe = recipes.read(write_recipe(tmp_path, two))
    found = [(each, stored(10, 50, 80, 90)) for each in plan(recipe, 2, 4)]
    one = draw(recipe, found[:1], tmp_path / "one.png", "a seed")
    three = draw(recipe, found, tmp_path / "three.png", "two seeds")
    assert one is not None
    assert three is not None
    small, large = imread(one), imread(three)
    assert large.shape[0] > 1.5 * small.shape[0]  # two rows of panels
    assert large.shape[1] > 1.5 * small.shape[1]
    assert draw(recipe, [], tmp_path / "none.png", "") is None


# -- from beginning to end ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that was carried out, two runs at a time, into ``out`` beside it."""
    folder = tmp_path_factory.mktemp("done")
    result = fedvra(write_recipe(folder), "--out", folder / "out", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "Table T: 0 runs are there, 4 to go, 2 at a time: about 0:0" in result.output
    assert "(from 3 rounds played now)" in result.output
    assert "[4/4] " in result.output
    assert "Non-IID   FedAvg " in result.output
    return folder


def test_runs_are_ordinary_runs_to_the_bit(done: Path, tmp_path: Path) -> None:
    recipe = recipes.load(str(done / "tiny.yaml"))
    for each in plan(recipe, 2, 4):
        folder = RunFolder(done / "out" / "runs" / folder_name(each.config))
        assert folder.summary().status == "finished"
        assert not folder.checkpoints.exists()
    execute(each.config, tmp_path / "alone")
    assert untimed(folder.metrics()) == untimed(RunFolder(tmp_path / "alone").metrics())


def test_nothing_is_run_twice(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_child_processes(monkeypatch)
    again = fedvra(done / "tiny.yaml", "--out", done / "out")
    assert again.exit_code == 0, again.output
    assert "Table T: all 4 runs are there." in again.output
    elsewhere = fedvra(done / "tiny.yaml", "--out", tmp_path, "--runs", done / "out" / "runs", "--rounds", "3")
    assert elsewhere.exit_code == 0, elsewhere.output
    assert (tmp_path / "tiny.md").read_text().count("| 3 |") == 2


def test_more_seeds_run_only_those(done: Path, tmp_path: Path) -> None:
    more = fedvra(done / "tiny.yaml", "--out", tmp_path, "--runs", done / "out", "--seeds", "3", "--only", "fedavg")
    assert more.exit_code == 0, more.output
    assert "2 runs are there, 1 to go" in more.output
    assert "(from earlier runs)" in more.output
    assert [path.name.split("-seed")[1][0] for path in (tmp_path / "runs").iterdir()] == ["2"]


def test_tables_and_figures_can_be_made_again_from_the_results_alone(done: Path, tmp_path: Path) -> None:
    again = fedvra(done / "tiny.yaml", "--no-run", "--runs", done / "out", "--out", tmp_path)
    assert again.exit_code == 0, again.output
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "tiny.json").write_text((done / "out" / "tiny.json").read_text())
    third = fedvra(done / "tiny.yaml", "--no-run", "--runs", tmp_path / "copy", "--out", tmp_path / "third")
    assert third.exit_code == 0, third.output
    assert (tmp_path / "third" / "tiny.md").read_text() == (done / "out" / "tiny.md").read_text()
    runs = [json.loads((folder / "tiny.json").read_text())["runs"] for folder in (done / "out", tmp_path / "third")]
    assert runs[0] == runs[1]
    first, second = (imread(folder / "tiny.png") for folder in (done / "out", tmp_path / "third"))
    assert abs(first - second).mean() < 1e-3  # results are rounded: a pixel may change its shade


def test_a_program_reads_json(done: Path) -> None:
    result = fedvra(done / "tiny.yaml", "--out", done / "out", "--json")
    answer = json.loads(result.stdout)
    assert answer["recipe"] == "tiny"
    assert [line["row"] for line in answer["table"]] == ["fedavg", "fedvra"]
    cell = answer["table"][0]["cells"]["20"]
    assert cell["paper"] == {"value": 40.0, "std": None, "more_than": False}
    assert cell["verdict"] == "off"
    assert cell["mean"] < 10
    assert sum(answer["agreement"].values()) == 3


def test_a_quick_look_says_so_and_leaves_the_results_alone(done: Path) -> None:
    before = (done / "out" / "tiny.json").read_bytes()
    quick = fedvra(done / "tiny.yaml", "--quick", "--out", done / "out")
    assert quick.exit_code == 0, quick.output
    assert "all 2 runs are there" in quick.output
    assert "quick look, not the paper's number of seeds and rounds" in quick.output
    assert "quick look" in (done / "out" / "tiny-quick.md").read_text()
    assert (done / "out" / "tiny.json").read_bytes() == before


def test_a_page_shows_the_table(done: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- tiny -->\nold\n<!-- /tiny -->\n\nAfter.\n")
    arguments = (done / "tiny.yaml", "--no-run", "--runs", done / "out", "--out", tmp_path, "--page", page)
    for _ in range(2):
        assert fedvra(*arguments).exit_code == 0
    text = page.read_text()
    assert text.startswith("Before.\n\n<!-- tiny -->\n| case | algorithm |")
    assert text.endswith(" or 0.5 points.\n<!-- /tiny -->\n\nAfter.\n")
    assert text.count("FedAvg") == 1
    page.write_text("Nothing.")
    refused = fedvra(*arguments)
    assert refused.exit_code == 2
    assert "has no lines <!-- tiny --> and <!-- /tiny -->" in refused.output


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


def test_what_is_missing_is_said(done: Path, tmp_path: Path) -> None:
    some = fedvra(done / "tiny.yaml", "--no-run", "--runs", done / "out", "--seeds", "5", "--out", tmp_path)
    assert some.exit_code == 0, some.output
    assert "6 of the recipe's 10 runs have not been made." in some.output


def test_an_estimate_grows_with_the_work(done: Path) -> None:
    cache = Cache([done / "out"])
    recipe = recipes.load(str(done / "tiny.yaml"))
    few = estimate(plan(recipe, 1, 100), cache)
    assert few.basis == "from earlier runs"
    assert estimate(plan(recipe, 1, 200), cache).total(1) == pytest.approx(2 * few.total(1))
    assert few.total(2) == pytest.approx(few.total(1) / 2)
    unequal = recipes.read(write_recipe(done, changed(common={**TINY["common"], "epochs": "1-5"}), "unequal"))
    assert estimate(plan(unequal, 1, 100), cache).total(1) == pytest.approx(3 * few.total(1))
    assert estimate([], cache).total(2) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["tabel3"], "there is no recipe 'tabel3': did you mean 'table3'"),
        (["nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["table3", "--seeds", "none"], "seeds must be a whole number"),
        (["table3", "--jobs", "0"], "jobs must be"),
        (["table3", "--only", "fedpd"], "table3 has nothing named 'fedpd'"),
        (["table3", "--runs", "no/such/folder"], "no/such/folder is not a folder"),
        (["table3", "--no-run"], "there is no run for table3 yet: leave out --no-run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_told_in_a_sentence(args: list[str], message: str, tmp_path: Path) -> None:
    result = fedvra(*args, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert result.output.startswith("Error: ")
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path))
    first = plan(recipe, 1, 2)[0]
    taken = tmp_path / "out" / "runs" / folder_name(first.config)
    taken.mkdir(parents=True)
    (taken / "precious.txt").write_text("not ours")
    with pytest.raises(FedvraError, match=r"1 of 2 runs failed, the last because the folder .* is already in use"):
        reproduce(recipe, Request(tmp_path / "out", quick=True, jobs=2), make_console(stderr=True))
    assert Cache([tmp_path / "out" / "runs"]).find(plan(recipe, 1, 2)[1].config) is not None


def test_stopped_and_called_again_it_comes_to_the_same_numbers(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, changed(seeds=1, rounds=120))
    wanted = plan(recipes.read(recipe), 1, 120)
    out = tmp_path / "out"
    folder = RunFolder(out / "runs" / folder_name(wanted[0].config))
    child = Child("reproduce", recipe, "--out", out, "--jobs", "1", log=tmp_path / "log")
    child.until(lambda: lines(folder) > 3)
    child.signal(signal.SIGINT)
    assert child.wait() == 1
    assert "interrupted; the same command goes on from here." in child.said()
    before = folder.metrics()
    assert 3 < len(before) < 120
    assert folder.summary().status == "interrupted"
    assert not (out / "runs" / folder_name(wanted[1].config)).exists()

    again = fedvra(recipe, "--out", out, "--jobs", "1", "--only", "fedavg", "--keep-checkpoints")
    assert again.exit_code == 0, again.output
    assert folder.metrics()[: len(before)] == before  # times and all: it went on, rather than over again
    assert folder.checkpoints.is_dir()
    execute(wanted[0].config, tmp_path / "alone")
    assert untimed(folder.metrics()) == untimed(RunFolder(tmp_path / "alone").metrics())
