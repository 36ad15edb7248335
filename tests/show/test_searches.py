"""The page of a search: what `fedvra tune` left, as a heat map of two hyper-parameters or parallel axes of more."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fedvra.show.page import write_report
from fedvra.show.searches import FILE, searches
from reports_opened import NEEDS_CHROMIUM, Opened
from runs_on_disk import store


def search(folder: Path, over: dict[str, list[str]], target: int | None = None, **result: Any) -> Path:
    """A finished search over FedVRA's settings: the later a combination, the better; two were stopped early."""
    settings = []
    for k, values in enumerate(itertools.product(*over.values())):
        given, name, early = dict(zip(over, values, strict=True)), f"setting-{k}", k in (1, 4)
        accuracies = [0.1, 0.3 + 0.05 * k][: 1 if early else 2]
        store(folder / name / "seed-0", accuracies, set={"gamma": 0.1, "a": 1, "d": 1, **given})
        settings.append(
            {
                "given": given,
                "rounds": len(accuracies),
                "diverged": 0,
                "judged": accuracies[-1],
                "rounds_to": None if early else 9 - k,
                "folder": name,
            }
        )
    said = {
        "task": "digits",
        "algorithm": "fedvra",
        "judged_by": "test_accuracy",
        "options": "--set a=10",
        "at_the_edge": [],
        "target": target,
        "settings": settings[::-1],
        **result,
    }
    (folder / FILE).write_text(json.dumps({"plan": {"over": over}, "result": said}))
    return folder


def test_values_are_in_order_and_early_ends_are_marked(tmp_path: Path) -> None:
    search(tmp_path, {"a": ["10", "9", "1/p"], "d": ["1"]})
    (found,) = searches([tmp_path], tmp_path)
    assert found["values"] == {"a": ["9", "10", "1/p"], "d": ["1"]}
    assert (found["judged"], found["percent"], found["least"]) == ("test accuracy", True, False)
    assert [setting["whole"] for setting in found["settings"]] == [True, False, True]
    assert found["settings"][0]["folder"] == "setting-2"


def test_a_target_is_what_counts_where_there_is_one(tmp_path: Path) -> None:
    search(tmp_path / "one", {"a": ["1", "2", "3"]}, target=90)
    (found,) = searches([tmp_path], tmp_path)  # a folder of searches will do
    assert (found["judged"], found["least"], found["percent"]) == ("rounds to 90%", True, False)
    assert [setting["figure"] for setting in found["settings"]] == [7, None, 9]


def test_a_search_that_goes_on_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"plan": {"over": {}}, "result": None}))
    assert searches([tmp_path], tmp_path) == []


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@NEEDS_CHROMIUM
def test_two_hyper_parameters_are_a_heat_map(browser: Any, tmp_path: Path, scheme: str) -> None:
    search(tmp_path / "runs", {"a": ["1", "5", "10"], "d": ["1", "2"]})
    page = write_report([tmp_path / "runs"], tmp_path / "report.html")
    opened = Opened(browser, page, {"width": 390, "height": 844}, color_scheme=scheme)
    cells = opened.page.locator(".heat td")
    assert cells.count() == 6
    assert opened.page.locator(".heat td.grey").count() == 2
    assert opened.page.locator(".heat td.winner").all_inner_texts() == ["55.00%"]
    backgrounds = {cells.nth(k).evaluate("each => getComputedStyle(each).backgroundColor") for k in range(6)}
    assert len(backgrounds) >= 4
    assert opened.page.locator(".search tbody tr.early").count() == 2
    assert opened.overflow() <= 0
    opened.plain()
    opened.context.close()


@NEEDS_CHROMIUM
def test_three_are_parallel_axes_and_the_best_is_on_top(browser: Any, tmp_path: Path, scheme: str) -> None:
    search(tmp_path / "runs", {"gamma": ["0.1", "1"], "a": ["1", "5"], "d": ["1", "2"]})
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"), color_scheme=scheme)
    lines = opened.page.locator(".parallel polyline")
    assert lines.count() == 8
    assert lines.last.locator("title").text_content() == "gamma=1, a=5, d=2: 65.00% after 2 rounds"
    assert [lines.nth(k).get_attribute("stroke-width") for k in range(8)].count("4") == 1
    greys = {lines.nth(k).get_attribute("stroke") for k in range(2)}
    assert len(greys) == 1
    assert opened.page.locator("#groups button[aria-pressed=true]").count() == 6  # the others are a click away
    opened.plain()
    opened.context.close()


@NEEDS_CHROMIUM
def test_a_search_over_an_option_names_it_in_every_setting(browser: Any, tmp_path: Path) -> None:
    """Runs that differ in lr are of two experiments, shown together."""
    for k, lr in enumerate((0.05, 0.1)):
        store(tmp_path / "runs" / f"setting-{k}" / "seed-0", [0.1, 0.3], lr=lr)
    plan = {"over": {"lr": ["0.05", "0.1"]}}
    settings = [
        {"given": {"lr": lr}, "rounds": 2, "diverged": 0, "judged": 0.3, "rounds_to": None, "folder": f"setting-{k}"}
        for k, lr in enumerate(plan["over"]["lr"])
    ]
    said = {"task": "digits", "algorithm": "fedvra", "judged_by": "test_accuracy", "options": "", "at_the_edge": []}
    (tmp_path / "runs" / FILE).write_text(
        json.dumps({"plan": plan, "result": {**said, "target": None, "settings": settings}})
    )
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    chips = [chip.strip() for chip in opened.page.locator("#groups button").all_inner_texts()]
    assert chips == ["FedVRA, lr 0.05", "FedVRA, lr 0.1"]
    assert opened.page.locator("#about").inner_text() == "digits: 2 groups of runs; they also differ in lr"
    opened.plain()
    opened.context.close()
