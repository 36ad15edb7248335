"""Reports that are hard to draw, in a real browser: runs that diverged, many runs, little to say, results of clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fedvra.show.page import write_report
from reports_opened import NEEDS_CHROMIUM, PHONE, Opened
from runs_on_disk import add, store

pytestmark = NEEDS_CHROMIUM
SPREAD = {"mean": 0.8, "std": 0.1, "worst_tenth": 0.5, "q10": 0.6, "q25": 0.7, "median": 0.8, "q75": 0.9, "q90": 1.0}


def ticks(opened: Opened, chart: int) -> list[str]:
    """What the ticks of the y-axis of a plot say."""
    return list(opened.page.evaluate(f"fedvraCharts[{chart}].ticks()"))


def test_a_run_that_rises_at_once_and_collapses_is_seen(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.95, 0.951, *[0.1] * 38])
    store(tmp_path / "runs" / "2", [0.9497, 0.9502, *[0.12] * 38], algorithm="fedavg")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    low, high = opened.page.evaluate("[fedvraCharts[0].u.scales.y.min, fedvraCharts[0].u.scales.y.max]")
    assert low < 10.5
    assert high > 95
    shown = ticks(opened, 0)
    assert len(shown) == len(set(shown)) >= 3, "ticks that say the same"
    opened.plain()
    opened.context.close()


def test_one_that_diverged_neither_stretches_an_axis_nor_wins(browser: Any, tmp_path: Path) -> None:
    wild = [2.0, 1e9, 1e31]
    store(
        tmp_path / "runs" / "1", [0.6, 0.2, 0.1], status="diverged", losses=wild, message="x0 is not finite, so: stop."
    )
    store(tmp_path / "runs" / "2", [0.3, 0.5, 0.6], algorithm="fedavg")
    store(tmp_path / "runs" / "3", [0.3, 0.5, 0.7], algorithm="fedprox")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    assert opened.page.evaluate("fedvraCharts[1].u.scales.y.max") < 3
    assert "FedVRA" not in opened.page.locator("#headlines").inner_text()
    assert "x0 is not finite, so: stop." in opened.page.locator("#messages").inner_text()
    assert opened.page.locator("#results tr", has_text="FedVRA").locator(".best").count() == 0
    for bars in ("#rounds-bars", "#bytes-bars"):  # though it reached 50% before that
        opened.page.get_by_role("radio", name="50%").click()
        assert opened.page.locator(f"{bars} .bar", has_text="FedVRA").inner_text().split() == ["FedVRA", "diverged"]
    assert "Runs that diverged are in no mean" in opened.page.locator("#table-note").inner_text()
    opened.plain()
    opened.context.close()


def test_a_loss_that_blew_up_leaves_room_for_the_others_until_all_is_asked_for(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.3, 0.2, 0.1], losses=[2.0, 8e3, 3e3])  # finished: nothing was infinite
    store(tmp_path / "runs" / "2", [0.3, 0.5, 0.6], algorithm="fedavg")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    top = "fedvraCharts[1].u.scales.y.max"
    assert opened.page.evaluate(top) < 3
    card = opened.page.locator("#charts .card").nth(1)
    assert "beyond the axis: FedVRA" in card.inner_text()
    opened.tool("Show all", 1).click()
    assert opened.page.evaluate(top) > 8e3
    assert "beyond the axis" not in card.inner_text()
    opened.plain()
    opened.context.close()


def test_bands_say_nothing_that_cannot_be(browser: Any, tmp_path: Path) -> None:
    for seed, accuracies in enumerate(([0.2, 0.999], [0.1, 0.7], [0.3, 1.0])):
        store(tmp_path / "runs" / str(seed), accuracies, seed=seed, losses=[2.0, [0.001, 3.0, 0.001][seed]])
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    for chart, ceiling in ((0, 100), (1, 1e9)):
        values = opened.page.evaluate(f"fedvraCharts[{chart}].u.data.slice(1).flat()")
        assert 0 <= min(values) <= max(values) <= ceiling
    opened.plain()
    opened.context.close()


def test_equal_means_are_marked_alike_and_bounds_never(browser: Any, tmp_path: Path) -> None:
    for seed, slow in enumerate(([0.2, 0.92, 0.93, 0.93], [0.2, 0.3, 0.92, 0.92])):
        store(tmp_path / "runs" / f"a{seed}", slow, seed=seed)
        store(tmp_path / "runs" / f"b{seed}", slow, seed=seed, algorithm="fedavg")
        store(
            tmp_path / "runs" / f"c{seed}", [0.91, 0.2, 0.2, 0.2] if seed else [0.2] * 4, seed=seed, algorithm="fedprox"
        )
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    rows = {row.split()[0]: row for row in opened.page.locator("#results tbody tr").all_inner_texts()}
    assert ">2.5 (1 of 2)" in rows["FedProx"]
    marked = opened.page.locator("#results tbody tr", has=opened.page.locator("td.best"))
    assert {text.split()[0] for text in marked.all_inner_texts()} == {"FedVRA", "FedAvg"}
    opened.plain()
    opened.context.close()


def test_the_only_one_that_always_gets_there_is_the_best(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.2, 0.3, 0.92, 0.92])
    store(tmp_path / "runs" / "2", [0.6, 0.7, 0.8, 0.89], algorithm="fedavg")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    opened.page.get_by_role("radio", name="90%").click()
    assert "Fewest rounds to 90%\nFedVRA\n3" in opened.page.locator("#headlines").inner_text()
    cells = opened.page.locator("#results tbody tr", has_text="FedVRA").locator("td").all()
    assert cells[-2].get_attribute("class") == "best"
    opened.plain()
    opened.context.close()


def test_the_best_of_a_metric_is_the_highest_unless_it_is_a_loss(browser: Any, tmp_path: Path) -> None:
    for name, f1, loss in (("fedavg", 0.7, 0.2), ("fedprox", 0.8, 0.3)):
        summary = store(tmp_path / "runs" / name, [0.5, 0.6], algorithm=name) / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"metrics": {"f1": f1, "my_loss": loss}}))
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    marked = opened.page.locator("#results td.best").all_inner_texts()
    assert [text for text in marked if text in ("0.7000", "0.8000", "0.2000", "0.3000")] == ["0.2000", "0.8000"]
    opened.page.get_by_role("button", name="f1").click()
    assert opened.page.locator("#results tbody th").first.inner_text() == "FedProx"
    opened.page.get_by_role("button", name="my_loss").click()
    assert opened.page.locator("#results tbody th").first.inner_text() == "FedAvg"
    opened.plain()
    opened.context.close()


def test_no_number_in_a_name_is_broken_on_a_phone(browser: Any, tmp_path: Path) -> None:
    for k in range(2):
        settings = {"gamma": 0.125 + k, "a": f"10.125:5.0625@{100 + k}", "d": 12.345678}
        store(tmp_path / "runs" / str(k), [0.2, 0.5 + k / 5], set=settings)
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"), PHONE)
    lines = """(parts) => parts.flatMap((part) => [...part.childNodes]).filter((node) => node.nodeType === Node.TEXT_NODE)
        .map((node) => { const range = document.createRange(); range.selectNodeContents(node);
          return [node.textContent, new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size]; })"""
    for place in ("#headlines", "#results tbody", "#rounds-bars"):
        parts = opened.page.locator(f"{place} .word").evaluate_all(lines)
        assert parts
        assert [text for text, count in parts if count > 1] == []
    assert opened.overflow() <= 0
    opened.plain()
    opened.context.close()


def test_rounds_are_whole_and_ten_lines_are_named_where_they_end(browser: Any, tmp_path: Path) -> None:
    for k in range(8):
        store(
            tmp_path / "runs" / str(k), [0.1 * k, 0.1 * k + 0.1, 0.1 * k + 0.15], set={"gamma": 0.1, "a": k + 1, "d": 1}
        )
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    marks = [mark for mark in opened.page.evaluate("fedvraCharts[0].u.axes[0]._values") if mark]
    assert set(marks) <= {"1", "2", "3"}
    assert opened.page.evaluate("fedvraCharts[0].named()")
    places = opened.page.evaluate("fedvraCharts[0].ends(() => 95, 0, 100, 12).map(({ at }) => at)")
    assert places == [100 - 12 * k for k in reversed(range(8))], (
        "names that end at one place are stacked inside the plot"
    )
    svg = ElementTree.fromstring(opened.page.evaluate("fedvraCharts[0].svg()"))
    names = [text for text in svg.iter("{http://www.w3.org/2000/svg}text") if (text.text or "").startswith("FedVRA")]
    edge = opened.page.evaluate("fedvraCharts[0].u.over.offsetLeft + fedvraCharts[0].u.over.clientWidth")
    assert [float(name.attrib["x"]) > edge for name in names] == [True] * 8
    assert opened.page.locator("h1").inner_text() == "FedVRA on digits: 8 settings"
    opened.plain()
    opened.context.close()


def test_long_names_are_told_in_full_or_left_to_the_legend(browser: Any, tmp_path: Path) -> None:
    """Ten settings whose names begin alike: cut short, they would all be the same."""
    for k in range(10):
        store(tmp_path / "runs" / str(k), [0.2, 0.3 + 0.05 * k], set={"gamma": 0.125, "a": k + 1, "d": 2 * k + 1})
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    assert opened.chip("").all_inner_texts()[1].strip() == "FedVRA (a=2, d=3)", "in the order of their values"
    drawn = """async (chart) => { const said = [], canvas = CanvasRenderingContext2D.prototype, { fillText } = canvas;
        canvas.fillText = function (text, ...at) { said.push(text); fillText.call(this, text, ...at); };
        fedvraCharts[chart].u.redraw(); await new Promise((done) => setTimeout(done));
        canvas.fillText = fillText; return said; }"""
    labels = {f"FedVRA (a={k + 1}, d={2 * k + 1})" for k in range(10)}
    assert labels <= set(opened.page.evaluate(drawn, 0))
    room = "fedvraCharts[0].plot.clientWidth - fedvraCharts[0].u.over.offsetLeft - fedvraCharts[0].u.over.clientWidth"
    assert opened.page.evaluate(room) >= opened.page.evaluate("fedvraCharts[0].room")
    opened.page.set_viewport_size({"width": 560, "height": 800})
    opened.until("fedvraCharts[0].room === 0")
    assert not labels & set(opened.page.evaluate(drawn, 0))
    assert opened.overflow() <= 0
    opened.plain()
    opened.context.close()


def test_runs_with_little_to_say(browser: Any, tmp_path: Path) -> None:
    """One that diverged at once, one still going on, one of a single round."""
    store(tmp_path / "runs" / "1", [], status="diverged")
    store(tmp_path / "runs" / "2", [0.2, 0.3], status=None, algorithm="fedavg")
    store(tmp_path / "runs" / "3", [0.2], algorithm="fedprox")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    chips = opened.page.locator("#groups button").all_inner_texts()
    assert [chip.strip() for chip in chips] == ["FedVRA · diverged", "FedAvg · unfinished", "FedProx"]
    assert opened.page.locator("#results tbody tr").count() == 3
    opened.plain()
    opened.context.close()


def test_the_page_of_one_run_says_nothing_of_several(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.2, 0.5])
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    said = opened.page.locator("main").inner_text()
    assert "Drag over a plot to zoom" in said
    for words in ("means over seeds", "Click an algorithm", "single seeds", "Best final accuracy"):
        assert words not in said
    opened.plain()
    opened.context.close()


def test_what_clients_see_is_drawn_and_few_of_their_numbers_have_curves(browser: Any, tmp_path: Path) -> None:
    """Beyond four algorithms the panels go over several rows, and those without results have none."""
    names = ["fedavg", "fedprox", "scaffold", "feddyn", "fednova"]
    for name in names:
        store(tmp_path / "runs" / name, [0.3, 0.6], algorithm=name)
        add(tmp_path / "runs" / name, clients={"count": 20, "accuracy": SPREAD}, unseen={"accuracy": SPREAD})
    store(tmp_path / "runs" / "short", [0.1], status="diverged", message="x0 is not finite.")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    wide, high = opened.page.locator("#clients img").evaluate("each => [each.naturalWidth, each.naturalHeight]")
    assert (wide, high) == (4 * 3.2 * 120, 4 * 2.9 * 120), "four panels side by side, two rows for each kind of clients"
    headings = opened.page.locator("#further-charts h3").all_inner_texts()
    assert headings == [
        f"{whose}: accuracy, {part}"
        for whose in ("Clients", "Unseen clients")
        for part in ("mean", "std", "worst tenth")
    ]
    for heading in opened.page.locator("#further-charts h3").all():
        assert heading.evaluate("each => each.getClientRects().length && each.offsetHeight") < 30, (
            "a heading of one line"
        )
    opened.plain()
    opened.context.close()


def test_curves_over_simulated_time(browser: Any, tmp_path: Path) -> None:
    for k, name in enumerate(["fedavg", "fedprox"], start=1):
        store(tmp_path / "runs" / name, [0.3, 0.6, 0.7], algorithm=name)
        add(tmp_path / "runs" / name, simulated_seconds=2.0 * k)
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    before = opened.picture()
    opened.page.select_option("#axis", "simulated")
    assert opened.picture() != before
    assert opened.page.evaluate("fedvraCharts[0].drawn.map((line) => line.x)") == [[2, 4, 6], [4, 8, 12]]
    assert "simulated" in opened.page.evaluate("fedvraCharts[0].u.axes[0].label")
    opened.plain()
    opened.context.close()


def test_what_diverged_is_said_to_be_beyond_the_axis_and_can_be_seen(browser: Any, tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.05, 0.04], status="diverged", losses=[2.0, 1e31], message="x0 is not finite.")
    store(tmp_path / "runs" / "2", [0.3, 0.6], algorithm="fedavg")
    opened = Opened(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    for chart, end in ((0, "min"), (1, "max")):
        assert "beyond the axis: FedVRA" in opened.page.locator("#charts .card").nth(chart).inner_text()
        drawn = f"fedvraCharts[{chart}].u.scales.y.{end}"
        before = opened.page.evaluate(drawn)
        opened.tool("Show all", chart).click()
        now = opened.page.evaluate(drawn)
        assert now <= 4 < before if end == "min" else now >= 1e31 > before
    opened.plain()
    opened.context.close()
