"""Tables and reports say which model accuracies are of, and by how much they fell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvra.show.content import content
from fedvra.show.gather import gather
from fedvra.show.rows import Outcome, Row, header, same_metrics
from fedvra.show.tables import as_csv
from fedvra.studies.comparing import compare
from small_run import SMALL
from tiny_recipe import TINY, fedvra, write_recipe


def outcome(accuracies: list[float]) -> Outcome:
    metrics = [{"round": k + 1, "test_accuracy": a} for k, a in enumerate(accuracies)]
    return Outcome.of("finished", metrics, 1.0, [90])


def test_falls_have_a_column_where_runs_are_long_enough() -> None:
    long = Row.of_outcomes("long", [outcome([0.9] * 20 + [0.85, 0.95]), outcome([0.95] * 20 + [0.94, 0.95])], [90])
    short = Row.of_outcomes("short", [outcome([0.9, 0.5])], [90])
    both = same_metrics([long, short])
    assert header([90], both)[:4] == ["algorithm", "final %", "best %", "worst fall"]
    assert [row.cells()[3] for row in both] == ["3.0 ± 2.8", "-"]
    assert header([90], same_metrics([short])) == ["algorithm", "final %", "best %", "rounds to 90%", "seconds"]


def test_csv_has_the_rounds_from_which_on_a_target_is_held() -> None:
    row = Row.of_outcomes("one", [outcome([0.91, 0.5, 0.92, 0.93])], [90])
    lines = as_csv([row], [90])
    named = dict(zip(lines.before.strip().split(","), lines.rows[0].strip().split(","), strict=True))
    assert (named["rounds_to_90_mean"], named["rounds_to_stay_90_mean"]) == ("1", "3")
    assert named["worst_fall_mean"] == ""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "runs"
    layers = {**SMALL, "rounds": 3}
    made = compare("fedvra,fedavg", {**layers, "deploy": "mean"}, out=out / "mean")
    assert made.title().endswith("; accuracies are of the mean of the clients' models")
    compare("fedavg", {**layers, "deploy": "x0"}, out=out / "plain")
    return out


def test_a_report_has_both_and_says_so(compared: Path) -> None:
    (experiment,) = content(gather([compared]), compared)["experiments"]
    names = {each["name"]: each["label"] for each in experiment["measures"]}
    assert names["model_accuracy"] == "Test accuracy of the deployed model"
    assert names["test_accuracy"] == "Test accuracy of x0"
    assert "accuracies are of the mean of the clients' models (" in experiment["about"]
    by_label = {group["label"]: group["series"] for group in experiment["groups"]}
    plain = by_label["FedAvg (deploy=x0)"]
    assert plain["model_accuracy"]["mean"] == plain["test_accuracy"]["mean"]
    assert len(by_label) == 3


def test_the_papers_tables_stay_with_x0_and_have_a_line_for_the_other(tmp_path: Path) -> None:
    rows = [{**TINY["rows"][1], "deploy": "mean"}]
    paper = {"fedvra": {"accuracy": [99.0, 0.1]}}
    recipe = {**TINY, "seeds": 1, "rows": rows, "cases": [{"name": "plain", "title": "Non-IID", "paper": paper}]}
    assert fedvra(write_recipe(tmp_path, recipe), "--out", tmp_path / "out").exit_code == 0
    said = json.loads((tmp_path / "out" / "tiny.json").read_text())
    x0, deployed = said["table"]
    (run,) = said["runs"]
    assert x0["cells"]["accuracy"]["mean"] == pytest.approx(100 * run["metrics"]["test_accuracy"][-1], abs=1e-3)
    assert deployed["cells"]["accuracy"]["mean"] == pytest.approx(100 * run["metrics"]["model_accuracy"][-1], abs=1e-3)
    assert deployed["label"] == "FedVRA, a = 2, deploy mean"
    assert deployed["cells"]["accuracy"]["paper"] is None
