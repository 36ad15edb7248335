"""Comparisons: which runs are made, what the table says of them, and what the picture shows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from fedvra.core.errors import UsageError
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder, RunSummary
from fedvra.runs.variants import Variant, parse_variants
from fedvra.show.comparison import Comparison, Row, Run
from fedvra.show.plots import Curve, draw_curves
from fedvra.show.spreads import Reached, Spread
from fedvra.show.style import looks
from fedvra.studies.comparing import compare

SMALL = {"task": "digits", "rounds": 4, "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}


# -- which runs ---------------------------------------------------------------------------------------------------------


def test_variants_with_their_own_settings() -> None:
    assert parse_variants("fedvra, fedavg,feddyn:alpha=0.1,scaffold") == [
        Variant("fedvra"),
        Variant("fedavg"),
        Variant("feddyn", {"alpha": "0.1"}),
        Variant("scaffold"),
    ]
    assert parse_variants("fedvra:gamma=0.1,a=5,d=1/p,fedvra") == [
        Variant("fedvra", {"gamma": "0.1", "a": "5", "d": "1/p"}),
        Variant("fedvra"),
    ]


def test_names_of_ones_own() -> None:
    strong, plain = parse_variants("fedvra:gamma=0.1,a=10 as very strong,fedavg as baseline/1")
    assert (strong.algorithm, strong.given) == ("fedvra", {"gamma": "0.1", "a": "10"})
    assert (strong.label, strong.slug, plain.label, plain.slug) == (
        "very strong",
        "very-strong",
        "baseline/1",
        "baseline-1",
    )
    with pytest.raises(UsageError, match="would be called 'x'"):
        parse_variants("fedvra as x,fedavg as x")


def test_labels_and_folders() -> None:
    tuned = Variant("fedvra", {"a": "5", "d": "1/p"})
    assert tuned.label == "FedVRA (a=5, d=1/p)"
    assert "/" not in tuned.slug
    assert Variant("scaffold").label == "SCAFFOLD"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name at least one algorithm"),
        (" , ", "name at least one algorithm"),
        ("fedvrra", "did you mean 'fedvra'"),
        ("a=3,fedvra", "'a=3' belongs to nothing before it"),
        ("fedvra:a", "write hyper-parameters as NAME:KEY=VALUE"),
        ("fedvra:", "write hyper-parameters as"),
        ("fedvra,fedavg,fedvra", "fedvra is named twice"),
    ],
)
def test_variants_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_variants(text)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """One that works, one that blows up, one that works: two seeds each."""
    out = tmp_path_factory.mktemp("compare") / "out"
    options = {**SMALL, "rounds": 12, "model": "mlp", "targets": "20,60,100"}
    return compare("fedvra:a=2,fedvra:a=5000,fedavg", options, seeds=[0, 1], out=out)


def test_every_run_has_its_folder(comparison: Comparison) -> None:
    for slug in ("fedvra_a=2", "fedvra_a=5000", "fedavg"):
        for seed in (0, 1):
            folder = RunFolder(comparison.out / slug / f"seed-{seed}")
            assert folder.summary().seed == seed
            assert folder.config().algorithm == slug.split("_")[0]


def test_one_divergence_does_not_stop_the_others(comparison: Comparison) -> None:
    assert [run.summary.status for run in comparison.runs] == ["finished"] * 2 + ["diverged"] * 2 + ["finished"] * 2
    tuned, wild, averaging = comparison.rows()
    assert (tuned.finished, wild.finished, averaging.finished) == (2, 0, 2)
    assert wild.diverged == 2
    assert wild.cells()[:2] == ["FedVRA (a=5000) [2 of 2 diverged]", "diverged"]


def test_means_and_deviations_are_those_of_the_runs(comparison: Comparison) -> None:
    final = [run.summary.final_accuracy for run in comparison.runs[:2]]
    row = comparison.rows()[0]
    assert row.final_accuracy is not None
    assert row.final_accuracy.mean == pytest.approx(np.mean(final))  # type: ignore[arg-type]
    assert row.final_accuracy.std == pytest.approx(np.std(final, ddof=1))  # type: ignore[arg-type]
    assert row.rounds_to["100"] == Reached(12, 0, 0, 2), "a bound: nobody got there in 12 rounds"


def test_seeds_share_their_cohorts(comparison: Comparison) -> None:
    cohorts = [[record["cohort"] for record in run.metrics] for run in comparison.runs]
    assert cohorts[0] == cohorts[4]
    assert cohorts[1] == cohorts[5]
    assert cohorts[0] != cohorts[1]


def test_the_table_in_all_its_forms(comparison: Comparison) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for cell in [*comparison.header(), *comparison.rows()[0].cells()]:
        assert cell in shown
        assert cell in comparison.table_file.read_text()
    written = json.loads((comparison.out / "comparison.json").read_text())
    assert [row["label"] for row in written["rows"]] == ["FedVRA (a=2)", "FedVRA (a=5000)", "FedAvg"]
    assert written["rows"][0]["final_accuracy"]["runs"] == 2


def test_the_picture_shows_every_algorithm(comparison: Comparison) -> None:
    labels = [curve.label for curve in comparison.curves()]
    assert labels == ["FedVRA (a=2)", "FedVRA (a=5000), diverged", "FedAvg"]
    first = comparison.curves()[0]
    assert list(first.rounds) == list(range(1, 13))
    assert all(low <= mean <= high for low, mean, high in zip(first.low, first.mean, first.high, strict=True))
    drawn = looks([curve.algorithm for curve in comparison.curves()])
    assert colours_in(comparison.picture_file) >= {look.light for look in drawn}


def test_nothing_is_written_where_one_of_them_cannot_run(tmp_path: Path) -> None:
    for algorithms in ("fedvra,fedpd", "fedvra,feddyn:alpha=40", "fedvra,feddyn:beta=1"):
        with pytest.raises(UsageError):
            compare(algorithms, SMALL, out=tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="already in use"):
        compare("fedvra", SMALL, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_there_must_be_a_seed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one seed"):
        compare("fedvra", SMALL, seeds=[], out=tmp_path / "out")


# -- the table, by hand -------------------------------------------------------------------------------------------------


def run(label: str, seed: int, status: str = "finished", final: float | None = 0.9, reached: Any = 5) -> Run:
    figures: dict[str, Any] = {
        "task": "digits",
        "algorithm": "fedvra",
        "label": label,
        "seed": seed,
        "status": status,
        "message": None,
        "rounds": 50,
        "final_accuracy": final,
        "best_accuracy": final,
        "rounds_to": {"90": reached},
        "seconds": 2.0 + seed,
        "seconds_per_round": 1.0,
        "steps_per_second": 1.0,
        "bytes_up": 1,
        "bytes_down": 1,
        "peak_rss_mb": 1.0,
    }
    metrics = [{"round": r, "test_accuracy": None if final is None else final - 0.1 * (2 - r)} for r in (1, 2)]
    return Run(label, RunSummary(**figures), metrics)


def test_spread_by_hand() -> None:
    assert Spread.of([]) is Spread.of([None]) is None
    assert Spread.of([2, 4, 6, None]) == Spread(4, 2, 3)
    assert Spread.of([7]) == Spread(7, 0, 1)
    assert Spread(0.9512, 0.0034, 3).text(2, scale=100) == "95.12 ± 0.34"
    assert Spread(0.9512, 0, 1).text(1, scale=100) == "95.1"


def test_row_of_three_seeds() -> None:
    runs = [
        run("A", 0, final=0.90, reached=10),
        run("A", 1, final=0.92, reached=14),
        run("A", 2, final=0.94, reached=None),
    ]
    assert Row.of(runs, [90]).cells() == ["A", "92.00 ± 2.00", "92.00 ± 2.00", ">24.7 (2 of 3)", "3.0 ± 1.0"]


def test_row_of_one_seed() -> None:
    assert Row.of([run("A", 0)], [90]).cells() == ["A", "90.00", "90.00", "5", "2.0"]
    assert Row.of([run("A", 0, reached=None)], [90]).cells()[3] == ">50"
    assert Row.of([run("A", 0, final=None, reached=None)], [90]).cells()[1] == "-"


def test_diverged_runs_count_but_do_not_blur_the_mean() -> None:
    row = Row.of([run("A", 0), run("A", 1, "diverged", final=0.1)], [90])
    assert row.cells()[:2] == ["A [1 of 2 diverged]", "90.00"]


def test_curves_leave_out_diverged_runs_where_others_finished(tmp_path: Path) -> None:
    runs = [run("A", 0, final=0.9), run("A", 1, final=0.7), run("A", 2, "diverged", final=0.1)]
    (curve,) = Comparison(configure(SMALL), runs, tmp_path).curves()
    assert curve.mean == pytest.approx([0.7, 0.8])
    assert curve.high[1] - curve.mean[1] == pytest.approx(np.std([0.9, 0.7], ddof=1))


def test_runs_without_test_data_have_no_curve(tmp_path: Path) -> None:
    lone = Comparison(configure({**SMALL, "targets": "90"}), [run("A", 0, final=None)], tmp_path)
    assert lone.curves() == []
    lone.write()
    assert lone.picture_file.exists()


# -- the picture --------------------------------------------------------------------------------------------------------


def colours_in(path: Path) -> set[str]:
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {"#{:02x}{:02x}{:02x}".format(*colour) for colour in np.unique(pixels, axis=0)}


def test_every_curve_is_drawn_in_its_colour(tmp_path: Path) -> None:
    curves = [
        Curve(f"number {k}", [1, 2, 3], [0.1 * k + 0.1 * r for r in (0, 1, 3)], [0.1 * k] * 3, [0.1 * k + 0.4] * 3)
        for k in range(6)
    ]
    draw_curves(curves, tmp_path / "curves.png", "title", "subtitle", targets=[50, 90])
    assert colours_in(tmp_path / "curves.png") >= {look.light for look in looks([curve.label for curve in curves])}


def test_a_single_point_shows(tmp_path: Path) -> None:
    draw_curves([Curve("A", [1], [0.5], [0.5], [0.5])], tmp_path / "curves.png", "title", "")
    assert looks(["A"])[0].light in colours_in(tmp_path / "curves.png")
