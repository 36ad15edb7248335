"""Recipes, and a table that says where it differs from the paper."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedvra.core.errors import UsageError
from fedvra.reproduce import recipe as recipes
from fedvra.reproduce.figures import draw
from fedvra.reproduce.recipe import Printed, Recipe
from fedvra.reproduce.table import ResultTable, compare_rounds, read_accuracy
from fedvra.reproduce.wanted import Wanted, plan
from fedvra.runs.cache import Stored, fingerprint
from fedvra.runs.files import Status
from tiny_recipe import TINY, changed, write_recipe

ROOT = Path(__file__).parents[2]


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
    one = draw(recipe, found[:1], tmp_path / "one.svg", "a seed")
    three = draw(recipe, found, tmp_path / "three.svg", "two seeds")
    assert one is not None
    assert three is not None
    small, large = (size(ElementTree.parse(path).getroot()) for path in (one, three))
    assert large[0] > 1.5 * small[0]  # two panels side by side
    assert large[1] > 1.5 * small[1]  # in two rows
    assert draw(recipe, [], tmp_path / "none.svg", "") is None


def size(picture: ElementTree.Element) -> tuple[float, ...]:
    return tuple(float(picture.attrib[name].removesuffix("pt")) for name in ("width", "height"))
