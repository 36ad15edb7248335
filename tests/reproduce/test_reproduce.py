"""`fedvra reproduce` from beginning to end: what is run, what is not, and what it writes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from crashes import Child, lines, untimed
from fedvra.core.errors import FedvraError
from fedvra.reproduce import recipe as recipes
from fedvra.reproduce.driver import Request, reproduce
from fedvra.reproduce.estimate import estimate
from fedvra.reproduce.wanted import plan
from fedvra.runs.cache import Cache, folder_name
from fedvra.runs.files import RunFolder
from fedvra.show.terminal import make_console
from fedvra.studies.execution import execute
from tiny_recipe import TINY, changed, fedvra, without_child_processes, write_recipe


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that was carried out, two runs at a time, into ``out`` beside it."""
    folder = tmp_path_factory.mktemp("done")
    result = fedvra(write_recipe(folder), "--out", folder / "out", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "Table T: 0 runs are there, 4 to go, 2 at a time: about 0:0" in result.output
    assert "(from 3 rounds timed now)" in result.output
    assert "[4/4] " in result.output
    assert re.search(r"Non-IID +FedAvg ", result.output)
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
    texts = [(folder / "tiny.svg").read_text() for folder in (done / "out", tmp_path / "third")]
    first, second = (np.array([float(x) for x in re.findall(r"-?\d+\.\d+", text)]) for text in texts)
    assert len(first) > 100
    np.testing.assert_allclose(first, second, atol=0.1)  # results are rounded: a tenth of a point at most


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
    assert "interrupted; run the same command again to resume." in child.said()
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
