"""Reports: which runs they find, how they sort them, and that the figures in them are those of the runs."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from fedvra.algorithms import REGISTRY
from fedvra.cli import main
from fedvra.core.errors import UsageError
from fedvra.runs.files import RunFolder
from fedvra.runs.provenance import Provenance, commit_of
from fedvra.show.content import content
from fedvra.show.figures import write_figures
from fedvra.show.gather import gather
from fedvra.show.page import FILE, report_page, write_report
from fedvra.show.style import ALGORITHMS, DARK_PAPER, LIGHT_PAPER, contrast, looks
from fedvra.show.tables import as_csv, as_latex, latex
from fedvra.studies.comparing import compare
from runs_on_disk import comparison, store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return comparison(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def said(runs: Path) -> dict[str, Any]:
    """What the page of those runs says, of its only experiment."""
    (experiment,) = content(gather([runs]), runs)["experiments"]
    return experiment  # type: ignore[no-any-return]


def group(said: dict[str, Any], label: str) -> dict[str, Any]:
    return next(each for each in said["groups"] if each["label"] == label)  # type: ignore[no-any-return]


# -- which runs, sorted how ---------------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_are_one_group(runs: Path) -> None:
    (experiment,) = gather([runs])
    assert {g.label: g.seeds for g in experiment.groups} == {"FedAvg": [0], "FedVRA": [0, 1], "SCAFFOLD": [0, 1]}
    assert experiment.title == "digits"


def test_the_folder_of_one_run_will_do_and_so_will_several(runs: Path) -> None:
    (experiment,) = gather([runs / "fedvra" / "seed-0", runs / "fedavg"])
    assert {g.label: g.seeds for g in experiment.groups} == {"FedVRA": [0], "FedAvg": [0]}


def test_a_run_named_twice_counts_once_and_the_longer_of_two_copies_wins(runs: Path, tmp_path: Path) -> None:
    store(tmp_path / "copy", [0.3, 0.6, 0.92, 0.95, 0.97])
    (experiment,) = gather([runs, runs / "fedvra", tmp_path])
    fedvra = next(g for g in experiment.groups if g.label == "FedVRA")
    assert fedvra.seeds == [0, 1]
    assert sorted(run.rounds for run in fedvra.runs) == [4, 5]


def test_one_algorithm_twice_is_told_apart_by_what_differs(tmp_path: Path) -> None:
    store(tmp_path / "1", [0.5], set={"gamma": 0.1, "a": 5})
    store(tmp_path / "2", [0.5], set={"gamma": 0.1, "a": 10})
    (experiment,) = gather([tmp_path])
    assert [g.label for g in experiment.groups] == ["FedVRA (a=5)", "FedVRA (a=10)"]


def test_other_data_or_work_is_another_experiment(tmp_path: Path) -> None:
    store(tmp_path / "1", [0.5], epochs="1")
    store(tmp_path / "2", [0.5], epochs="1-5")
    store(tmp_path / "3", [0.5], epochs="1-5", algorithm="fedavg", workers=2, rounds=7)
    first, second = gather([tmp_path])
    assert (first.title, second.title) == ("digits, epochs 1", "digits, epochs 1-5")
    assert [g.label for g in second.groups] == ["FedVRA", "FedAvg"]


def test_a_run_that_goes_on_and_one_that_diverged_at_once_are_there_too(tmp_path: Path) -> None:
    store(tmp_path / "1", [0.3, 0.6], status=None)
    store(tmp_path / "2", [], status="diverged", algorithm="fedavg")
    (experiment,) = gather([tmp_path])
    rows = [g.row(experiment.targets).cells() for g in experiment.groups]
    assert [row[:2] for row in rows] == [["FedVRA [unfinished]", "60.00"], ["FedAvg [diverged]", "diverged"]]
    assert report_page([experiment], tmp_path).startswith("<!doctype html>")


def test_labels_and_order_are_those_of_the_comparison(tmp_path: Path) -> None:
    options = {"task": "digits", "rounds": 2, "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}
    made = compare("scaffold,fedvra:a=2,fedavg", options, out=tmp_path / "out")
    (experiment,) = gather([tmp_path / "out"])
    assert [g.label for g in experiment.groups] == ["SCAFFOLD", "FedVRA (a=2)", "FedAvg"]
    assert [g.row(experiment.targets).cells() for g in experiment.groups] == [row.cells() for row in made.rows()]
    assert made.report_file.read_text().startswith("<!doctype html>")


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="there is no run with a finished round"):
        gather([tmp_path])


# -- the figures --------------------------------------------------------------------------------------------------------


def test_curves_are_means_and_deviations_over_seeds(said: dict[str, Any]) -> None:
    curve = group(said, "FedVRA")["series"]["test_accuracy"]
    assert curve["rounds"] == [1, 2, 3, 4]
    assert curve["mean"] == pytest.approx([0.25, 0.55, 0.90, 0.94])
    assert curve["std"][0] == pytest.approx(statistics.stdev([0.3, 0.2]), rel=1e-4)


def test_diagnostics_are_curves_at_the_rounds_that_have_them(said: dict[str, Any]) -> None:
    names = [measure["name"] for measure in said["measures"]]
    assert names == ["test_accuracy", "test_loss", "train_loss", "diagnostics/xi", "diagnostics/grad_norm2"]
    curve = group(said, "FedVRA")["series"]["diagnostics/xi"]
    assert (curve["rounds"], curve["mean"]) == ([2, 4], [0.5, 0.25])
    assert "diagnostics/xi" not in group(said, "FedAvg")["series"]


def test_rounds_and_bytes_to_a_target(said: dict[str, Any]) -> None:
    fedvra, scaffold, fedavg = (group(said, label) for label in ("FedVRA", "SCAFFOLD", "FedAvg"))
    assert fedvra["rounds_to"]["90"]["mean"] == 3.5
    assert scaffold["rounds_to"]["90"] == {"mean": 4, "std": 0, "runs": 1, "complete": False, "text": ">4 (1 of 2)"}
    assert fedavg["rounds_to"]["90"]["text"] == ">4"
    assert scaffold["bytes_to"]["here"]["90"]["mean"] == 4 * 2 * 1000
    assert scaffold["bytes_to"]["original"]["90"]["mean"] == 4 * 2 * 2000
    assert scaffold["published"] == {"up": 2, "down": 2}
    assert (fedavg["bytes_to"]["here"]["90"]["runs"], fedavg["bytes_to"]["here"]["90"]["complete"]) == (0, False)


def test_what_curves_can_be_drawn_over(said: dict[str, Any]) -> None:
    assert group(said, "FedVRA")["axes"] == {"bytes": [2000, 4000, 6000, 8000], "seconds": [0.5, 1.0, 1.5, 2.0]}
    assert group(said, "FedVRA")["seconds_per_round"]["mean"] == 0.5
    assert group(said, "FedVRA")["training"]["mean"] == pytest.approx(0.8)


def test_the_configuration_says_what_differs(said: dict[str, Any]) -> None:
    differ = {each["name"]: each["values"] for each in said["config"]["differ"]}
    assert differ["algorithm"] == ["fedavg", "fedvra", "scaffold"]
    assert differ["gamma"] == ["-", "0.1", "-"]
    assert {"name": "clients", "value": "20"} in said["config"]["same"]
    assert not {"seed"} & {*differ, *(each["name"] for each in said["config"]["same"])}


def test_why_a_run_ended_and_what_it_is_drawn_in_are_on_the_page(tmp_path: Path) -> None:
    store(tmp_path / "1", [0.5, 0.1], status="diverged", message="x0 is not finite: try a smaller --lr.")
    store(tmp_path / "2", [0.5, 0.6], algorithm="fedavg")
    (experiment,) = content(gather([tmp_path]), tmp_path)["experiments"]
    diverged, finished = experiment["groups"]
    assert diverged["messages"] == [{"seed": 0, "status": "diverged", "text": "x0 is not finite: try a smaller --lr."}]
    assert (diverged["whole"], diverged["wins"], finished["whole"], finished["wins"]) == (False, False, True, True)
    assert finished["look"]["light"] == looks(["fedavg"])[0].light


def test_the_page_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    runs = comparison(tmp_path / "runs")
    said = content(gather([runs]), runs)["made"]
    noted = Provenance.read(RunFolder(runs / "fedvra" / "seed-0").provenance_file)
    assert noted is not None
    for name, text in {"command": noted.command, "machine": noted.machine}.items():
        assert said[name] == text
    for commit, text in (("1234abcd", "1234abcd"), (None, "none: started outside of a git repository")):
        for folder in runs.glob("*/*"):
            dataclasses.replace(noted, commit=commit).write(RunFolder(folder).provenance_file)
        assert content(gather([runs]), runs)["made"]["commit"] == text
    for folder in runs.glob("*/*"):  # runs from before that was noted
        RunFolder(folder).provenance_file.unlink()
    assert "command" not in content(gather([runs]), runs)["made"]


def test_the_commit_is_that_of_the_folder_with_a_word_on_changes(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", "-C", str(tmp_path), *named, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert commit_of(str(tmp_path)) is None
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "one")
    (tmp_path / "new").write_text("a")
    git("add", "new")
    commit_of.cache_clear()
    assert commit_of(str(tmp_path)) == git("rev-parse", "HEAD")[:12] + "-dirty"


def test_every_algorithm_has_a_colour_and_a_dash_of_its_own() -> None:
    names = REGISTRY.names()
    shipped = [name for name in names if REGISTRY.get(name).__module__.startswith("fedvra.")]
    assert set(ALGORITHMS) == set(shipped)
    made = looks(shipped)
    assert len({look.light for look in made}) == len({look.dash for look in made}) == len(shipped)
    for look in [*made, *looks(["fedvra"] * 8), *looks(["strange", "stranger"])]:
        assert contrast(look.light, LIGHT_PAPER) >= 3
        assert contrast(look.dark, DARK_PAPER) >= 3


# -- tables to copy -----------------------------------------------------------------------------------------------------


def test_csv_holds_the_figures(runs: Path) -> None:
    (experiment,) = gather([runs])
    rows = [g.row(experiment.targets) for g in experiment.groups]
    read = {line["algorithm"]: line for line in csv.DictReader(io.StringIO(as_csv(rows, experiment.targets).text()))}
    assert float(read["FedVRA"]["final_accuracy_mean"]) == pytest.approx(0.94)
    assert float(read["FedVRA"]["final_accuracy_std"]) == pytest.approx(statistics.stdev([0.95, 0.93]))
    assert read["SCAFFOLD"]["rounds_to_90_runs"] == "1"
    assert (read["FedAvg"]["rounds_to_90_mean"], read["FedAvg"]["rounds_to_90_at_least"]) == ("", "4")
    assert (read["SCAFFOLD"]["rounds_to_90_mean"], read["SCAFFOLD"]["rounds_to_90_at_least"]) == ("", "4")
    assert read["FedAvg"]["finished"] == "1"


def test_latex_is_a_table(runs: Path) -> None:
    (experiment,) = gather([runs])
    rows = [g.row(experiment.targets) for g in experiment.groups]
    text = as_latex(rows, experiment.targets).text()
    assert (
        "FedVRA & $94.00 \\pm 1.41$ & $94.00 \\pm 1.41$ & $2.0 \\pm 0.0$ & $3.5 \\pm 0.7$ & $2.0 \\pm 0.0$ \\\\\n"
        in text
    )
    assert "SCAFFOLD & $85.50 \\pm 7.78$ & $85.50 \\pm 7.78$ & $3.0 \\pm 0.0$ & $>4$ (1 of 2)" in text
    assert "FedAvg & 55.00 & 55.00 & 4 & $>4$ & 2.0 \\\\\n" in text
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    body = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert {line.count(" & ") + 1 for line in body} == {len(columns[1])}
    assert text.count("\\toprule") == text.count("\\midrule") == text.count("\\bottomrule") == 1


def test_latex_is_not_fooled_by_what_is_special_to_it() -> None:
    assert latex(r"100% of {a_b} & $c ~ #1 ^ \x") == (
        r"100\% of \{a\_b\} \& \$c \textasciitilde{} \#1 \^{} \textbackslash{}x"
    )


# -- the page -----------------------------------------------------------------------------------------------------------


def test_the_page_carries_everything(runs: Path, tmp_path: Path) -> None:
    page = write_report([runs], tmp_path / "deep" / FILE).read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page), "something would be fetched"
    assert "{{" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)
    assert "default-src 'none'" in page
    assert len(page) < 200_000


def test_the_page_is_the_same_each_time(runs: Path, tmp_path: Path) -> None:
    first, second = (write_report([runs], tmp_path / name).read_bytes() for name in ("1.html", "2.html"))
    assert first == second


def test_no_name_ends_the_script_it_is_in(runs: Path) -> None:
    (experiment,) = gather([runs])
    experiment.groups[0] = replace(experiment.groups[0], label="</script><b>")
    page = report_page([experiment], runs)
    found = re.search(r'id="content">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["experiments"][0]["groups"][0]["label"] == "</script><b>"


def test_a_page_that_cannot_be_written(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_report([runs], tmp_path / "file" / FILE)


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, figures = tmp_path / "r.html", tmp_path / "figures"
    with pytest.raises(SystemExit) as exit:
        main(
            ["report", str(runs / "fedavg"), "--out", str(page), "--figures", str(figures), "--format", "svg", "--json"]
        )
    assert exit.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["report"] == str(page)
    assert sorted(printed["figures"]) == sorted(map(str, figures.iterdir()))
    assert page.exists()


def test_watching_ends_with_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store(tmp_path / "run", [0.3, 0.4], status=None, rounds=4)
    page = tmp_path / "r.html"
    seen: list[str] = []

    def later(seconds: float) -> None:
        seen.append(page.read_text())
        shutil.rmtree(folder)
        store(folder, [0.3, 0.4, 0.5, 0.6])

    monkeypatch.setattr("fedvra.cli.report.time.sleep", later)
    with pytest.raises(SystemExit) as exit:
        main(["report", str(folder), "--out", str(page), "--watch", "--every", "7"])
    assert exit.value.code == 0
    assert len(seen) == 1
    assert '<meta http-equiv="refresh" content="7">' in seen[0]
    assert '"going":{"label":"FedVRA","round":2,"of":4}' in seen[0]
    assert "refresh" not in page.read_text().split("<style>")[0]


def test_watching_waits_for_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, page = store(tmp_path / "run", [], status=None, rounds=2), tmp_path / "r.html"
    waits = 0

    def later(seconds: float) -> None:
        nonlocal waits
        waits += 1
        shutil.rmtree(folder)
        store(folder, [[0.3], [0.3, 0.4]][waits - 1], status=[None, "finished"][waits - 1], rounds=2)

    monkeypatch.setattr("fedvra.cli.report.time.sleep", later)
    shown = CliRunner().invoke(main, ["report", str(folder), "--out", str(page), "--watch"])
    assert shown.exit_code == 0, shown.output
    assert waits == 2
    lines = shown.stderr.splitlines()
    assert lines == [f"{page}: no round is finished yet", f"{page}: {folder}: round 1 of 2"]
    assert "refresh" not in page.read_text().split("<style>")[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no run with a finished round" in CliRunner().invoke(main, ["report", str(empty), "--watch"]).stderr


# -- figures for papers -------------------------------------------------------------------------------------------------

NAMES = {"test_accuracy", "test_loss", "train_loss", "diagnostics-xi", "diagnostics-grad_norm2"}


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_figures(runs: Path, tmp_path: Path, kind: str) -> None:
    drawn = write_figures(gather([runs]), tmp_path, kind)
    assert {path.name for path in drawn} == {
        f"{name}.{kind}" for name in NAMES | {"rounds-to-target", "data-to-target"}
    }
    for path in drawn:
        data = path.read_bytes()
        if kind == "png":
            assert imread(path)[..., :3].std() > 0.01, "an empty picture"
        elif kind == "pdf":
            assert data.startswith(b"%PDF")
            assert b"/Type3" not in data
        else:
            words = " ".join(
                node.text or "" for node in ElementTree.fromstring(data).iter() if node.tag.endswith("text")
            )
            assert "FedVRA" in words


def test_figures_of_several_experiments_have_their_names_and_are_the_same_each_time(tmp_path: Path) -> None:
    store(tmp_path / "runs" / "1", [0.3, 0.4], epochs="1")
    store(tmp_path / "runs" / "2", [0.3, 0.4], epochs="1-5")
    drawn, again = (write_figures(gather([tmp_path / "runs"]), tmp_path / str(k), "svg") for k in (1, 2))
    assert {"digits-epochs-1-test_loss.svg", "digits-epochs-1-5-test_loss.svg"} <= {path.name for path in drawn}
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]


# -- what is shipped ----------------------------------------------------------------------------------------------------


def test_the_plotting_library_is_the_one_its_readme_says() -> None:
    library = files("fedvra.show") / "assets" / "uplot"
    known = dict(re.findall(r"([0-9a-f]{64})  (\S+)", (library / "README.md").read_text()))
    assert set(known.values()) == {"uPlot.iife.min.js", "uPlot.min.css"}
    for digest, name in known.items():
        assert hashlib.sha256((library / name).read_bytes()).hexdigest() == digest
    assert "MIT" in (library / "LICENSE").read_text()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git to list the files")
def test_what_the_page_is_made_of_is_in_the_wheel() -> None:
    """Hatch packs what is in src/fedvra and not ignored by git: nothing of the assets may be."""
    assets = ROOT / "src" / "fedvra" / "show" / "assets"
    found = [str(path) for path in assets.rglob("*") if path.is_file()]
    ignored = subprocess.run(["git", "check-ignore", *found], cwd=ROOT, capture_output=True, text=True, check=False)
    assert len(found) >= 10
    assert ignored.stdout == ""
