"""The page of a report in a real browser: Debian's chromium without a window, driven by Playwright.

Where there is none these tests are skipped; `make test` installs it where apt may.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedvra.show.gather import gather
from fedvra.show.page import write_report
from fedvra.show.tables import as_csv, as_latex
from reports_opened import NEEDS_CHROMIUM, PHONE, WIDE, Opened
from runs_on_disk import comparison, store

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return comparison(tmp_path_factory.mktemp("browser") / "runs")


@pytest.fixture
def opened(browser: Any, runs: Path, tmp_path: Path) -> Iterator[Opened]:
    page = Opened(browser, write_report([runs], tmp_path / "report.html"))
    yield page
    page.plain()
    page.context.close()


def test_it_shows_every_part(opened: Opened) -> None:
    page = opened.page
    assert page.locator("h1").inner_text() == "FedAvg, FedVRA and SCAFFOLD on digits"
    assert page.locator("#charts .card").count() == 3
    headings = page.locator("#further-charts h3").all_inner_texts()
    assert headings == ["Ξ: distance of duals to gradients", "Squared norm of the gradient"]
    assert page.locator("#rounds-bars .bar").count() == 3
    assert page.locator("#results tbody tr").count() == 3
    assert page.locator("#time-bars .bar").count() == 3
    assert "gamma" in page.locator("#differ").inner_text()
    assert page.locator("#differ mark").count() > 3


def test_hiding_an_algorithm_changes_plots_bars_and_table(opened: Opened) -> None:
    before = opened.picture(), opened.picture(1)
    opened.chip("SCAFFOLD").click()
    assert opened.chip("SCAFFOLD").get_attribute("aria-pressed") == "false"
    assert opened.picture() != before[0]
    assert opened.picture(1) != before[1]
    assert opened.page.locator("#results tbody th").all_inner_texts() == ["FedAvg", "FedVRA"]
    assert opened.page.locator("#rounds-bars .bar").count() == 2
    opened.chip("SCAFFOLD").click()
    assert opened.picture() == before[0]


def test_all_may_be_hidden_and_shown_again(opened: Opened) -> None:
    before = opened.picture()
    for label in ("FedAvg", "FedVRA", "SCAFFOLD"):
        opened.chip(label).click()
    assert opened.page.locator("#results tbody tr").count() == 0
    opened.chip("show all").click()
    assert opened.picture() == before


def test_a_logarithmic_axis_and_other_things_to_draw_over(opened: Opened) -> None:
    seen = {opened.picture()}
    opened.tool("Logarithmic axis").click()
    assert opened.page.locator("#charts h3").first.inner_text() == "Test error"
    seen.add(opened.picture())
    for axis in ("bytes", "seconds"):
        opened.page.select_option("#axis", axis)
        seen.add(opened.picture())
    opened.page.check("#log-x")
    seen.add(opened.picture())
    assert len(seen) == 5


def test_hovering_tells_the_values(opened: Opened) -> None:
    over = opened.page.locator(".u-over").first
    box = over.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 40)
    tip = opened.page.locator(".tip").first
    assert tip.is_visible()
    lines = tip.inner_text().splitlines()
    assert lines[0] == "round 4"
    assert "94.00 ± 1.41%" in tip.inner_text()
    assert tip.inner_text().index("FedVRA") < tip.inner_text().index("FedAvg"), "not in the order of the lines"


def test_dragging_zooms_and_a_double_click_shows_all_again(opened: Opened) -> None:
    before = opened.picture()
    box = opened.page.locator(".u-over").first.bounding_box()
    opened.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 50)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=4)
    opened.page.mouse.up()
    assert opened.picture() != before
    opened.page.locator(".u-over").first.dblclick()
    assert opened.picture() == before


def test_the_keyboard_does_all_that(opened: Opened) -> None:
    before = opened.picture()
    plot = opened.page.locator(".plot").first
    plot.focus()
    opened.page.keyboard.press("ArrowRight")
    assert "round 1" in opened.page.locator(".tip").first.inner_text()
    opened.page.keyboard.press("ArrowRight")
    assert "round 2" in opened.page.locator(".tip").first.inner_text()
    opened.page.keyboard.press("+")
    assert opened.picture() != before
    opened.page.keyboard.press("0")
    assert opened.picture() == before
    opened.chip("FedAvg").focus()
    opened.page.keyboard.press("Space")
    assert opened.chip("FedAvg").get_attribute("aria-pressed") == "false"
    assert opened.page.evaluate("document.activeElement.textContent").startswith("FedAvg"), "focus was lost"


def test_targets_can_be_chosen(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("radio", name="90%").click()
    bars = page.locator("#rounds-bars .bar").all_inner_texts()
    assert [bar.split("\n")[1] for bar in bars] == ["not in 4 rounds", "3.5 ± 0.7", ">4"]
    assert "1 of 2 runs reached it" in bars[2]
    sent = page.locator("#bytes-bars .bar").all_inner_texts()
    assert "8 kB" in sent[2]
    assert "published: 16 kB, with 2 vectors up and 2 down" in sent[2]
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("radio", name="50%").get_attribute("aria-checked") == "true"
    assert "not in" not in page.locator("#rounds-bars").inner_text()


def test_the_copied_table_is_right(opened: Opened, runs: Path) -> None:
    (experiment,) = gather([runs])
    rows = [group.row(experiment.targets) for group in experiment.groups]
    assert opened.copied("Copy as CSV") == as_csv(rows, experiment.targets).text()
    assert opened.copied("Copy as LaTeX") == as_latex(rows, experiment.targets).text()
    opened.chip("SCAFFOLD").click()
    left = csv.DictReader(io.StringIO(opened.copied("Copy as CSV")))
    assert [line["algorithm"] for line in left] == ["FedAvg", "FedVRA"]
    assert "SCAFFOLD" not in opened.copied("Copy as LaTeX")


def test_it_copies_also_where_the_clipboard_is_refused(opened: Opened) -> None:
    opened.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    assert opened.copied("Copy as CSV").startswith("algorithm,finished,")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_they_are_chosen(browser: Any, runs: Path, tmp_path: Path, scheme: str) -> None:
    opened = Opened(browser, write_report([runs], tmp_path / "report.html"), color_scheme=scheme)

    def brightness() -> float:
        colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / (3 * 255)

    assert (brightness() < 0.3) == (scheme == "dark")
    assert (brightness() > 0.9) == (scheme == "light")
    drawn = opened.picture()
    switch = opened.page.locator("#theme")
    switch.click()
    assert (switch.inner_text(), brightness() > 0.9) == ("Theme: light", True)
    switch.click()
    assert (switch.inner_text(), brightness() < 0.3) == ("Theme: dark", True)
    switch.click()
    assert switch.inner_text() == "Theme: system"
    assert opened.picture() == drawn
    opened.plain()
    opened.context.close()


@pytest.mark.parametrize("viewport", [PHONE, {"width": 760, "height": 900}, WIDE], ids=["phone", "tablet", "desk"])
def test_nothing_sticks_out_sideways(browser: Any, runs: Path, tmp_path: Path, viewport: dict[str, int]) -> None:
    store(tmp_path / "more" / "1", [0.3, 0.4], epochs="1-5", set={"gamma": 0.1, "a": 10, "d": "1/p"})
    store(tmp_path / "more" / "2", [0.3, 0.4], epochs="1-5", set={"gamma": 0.01, "a": 5, "d": 12.5})
    opened = Opened(browser, write_report([runs, tmp_path / "more"], tmp_path / "report.html"), viewport)
    for choice in ("0", "1", "-1"):
        opened.page.select_option("#experiment", choice)
        assert opened.overflow() == 0, choice
        widths = opened.page.locator(".plot .u-wrap").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().right)"
        )
        assert all(right <= viewport["width"] for right in widths)
    opened.plain()
    opened.context.close()


def test_points_show_where_one_hovers_and_the_tip_is_at_the_far_side(opened: Opened) -> None:
    box = opened.page.locator(".u-over").first.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 40)
    tip = opened.page.locator(".tip").first.bounding_box()
    assert tip["x"] + tip["width"] < box["x"] + box["width"] / 2
    points = opened.page.locator(".plot").first.locator(".u-cursor-pt")
    seen = points.evaluate_all(
        "all => all.filter(e => getComputedStyle(e).backgroundColor !== 'rgba(0, 0, 0, 0)').length"
    )
    assert seen == 3


def test_bands_smoothing_and_single_seeds(opened: Opened) -> None:
    seen = {opened.picture()}
    opened.page.select_option("#band", "none")
    seen.add(opened.picture())
    opened.page.select_option("#band", "range")
    seen.add(opened.picture())
    low = opened.page.evaluate("fedvraCharts[0].drawn.find(l => l.group.label === 'FedVRA').low")
    assert low == pytest.approx([20, 50, 88, 93])
    opened.page.check("#seeds")
    seen.add(opened.picture())
    opened.page.select_option("#smooth", "3")
    seen.add(opened.picture())
    mean = opened.page.evaluate("fedvraCharts[0].drawn.find(l => l.group.label === 'FedVRA').y")
    assert mean == pytest.approx([25, 40, (25 + 55 + 90) / 3, (55 + 90 + 94) / 3])
    assert len(seen) == 5


def test_the_address_keeps_what_is_shown(opened: Opened) -> None:
    opened.chip("SCAFFOLD").click()
    opened.page.select_option("#axis", "bytes")
    opened.page.select_option("#band", "none")
    before = opened.picture()
    opened.page.reload()
    assert opened.picture() == before
    assert opened.chip("SCAFFOLD").get_attribute("aria-pressed") == "false"
    opened.requests.clear()
    opened.requests.append(opened.page.url)


def test_one_alone(opened: Opened) -> None:
    opened.chip("FedVRA").click(modifiers=["Shift"])
    assert opened.page.locator("#results tbody th").all_inner_texts() == ["FedVRA"]


def test_the_table_sorts(opened: Opened) -> None:
    names = opened.page.locator("#results tbody th")
    opened.page.get_by_role("button", name="final %").click()
    assert names.all_inner_texts() == ["FedVRA", "SCAFFOLD", "FedAvg"]
    opened.page.get_by_role("button", name="final %").click()
    assert names.all_inner_texts() == ["FedAvg", "SCAFFOLD", "FedVRA"]
    opened.page.get_by_role("button", name="rounds to 90%").click()
    assert names.all_inner_texts()[0] == "FedVRA", "bounds come last"


@pytest.mark.parametrize("kind", ["SVG", "PNG", "CSV"])
def test_a_plot_can_be_kept(opened: Opened, kind: str, tmp_path: Path) -> None:
    with opened.page.expect_download() as waiting:
        opened.page.locator(".save").first.select_option(kind)
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    assert file.name == f"test_accuracy.{kind.lower()}"
    if kind == "SVG":
        found = ElementTree.fromstring(file.read_text())
        assert len([node for node in found.iter() if node.tag.endswith("polyline")]) == 3
    elif kind == "CSV":
        lines = list(csv.reader(file.read_text().splitlines()))
        assert lines[0] == ["label", "round", "mean", "low", "high", "run_1", "run_2"]
        assert {len(line) for line in lines} == {7}, "as many cells in every line, whatever its number of runs"
        assert len(lines) == 1 + 3 * 4
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_every_control_has_a_name(opened: Opened) -> None:
    nameless = opened.page.evaluate(
        """() => {
          const named = (each) => each.textContent.trim() || each.labels?.length
            || ["aria-label", "aria-labelledby", "alt"].some((name) => each.getAttribute(name));
          const all = [...document.querySelectorAll("button, select, input, img, [tabindex='0']")];
          return all.filter((each) => !each.closest("[hidden]") && !named(each)).map((each) => each.outerHTML);
        }"""
    )
    assert nameless == []


def test_a_name_from_a_run_stays_text(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.3, 0.4], split="dirichlet:0.2")
    page = write_report([tmp_path / "runs"], tmp_path / "report.html")
    page.write_text(page.read_text().replace('"label":"FedVRA"', '"label":"\\u003cimg src=x onerror=alert(1)>"'))
    opened = Opened(browser, page)
    assert opened.page.locator("#groups button").inner_text().strip() == "<img src=x onerror=alert(1)>"
    assert "<img src=x" in opened.page.locator("#time-bars").inner_text()
    assert opened.page.locator("img[src=x]").count() == 0
    opened.plain()
    opened.context.close()
