"""What the documentation says is so: its Python runs, its commands parse, its links lead somewhere, its tables are the code's.

The Python blocks of a page are run in order in one process, as a reader would paste them. A block below the line
``<!-- needs mnist -->`` is left out where that data set is not on this machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.cli import main
from fedvra.cli._options import layers, parse_seeds
from fedvra.core.cohort import Cohort, Setting
from fedvra.core.rule import Totals
from fedvra.data.partitions import parse_partition
from fedvra.data.sources import is_stored
from fedvra.models import MODELS
from fedvra.reproduce.recipe import load
from fedvra.reproduce.wanted import plan
from fedvra.runs.config import configure
from fedvra.runs.option_text import assignments
from fedvra.runs.variants import parse_variants
from fedvra.samplers import parse_sampler
from fedvra.studies.tuning import settings_to_try
from fedvra.tasks import TASKS

ROOT = Path(__file__).parent.parent
BUILT = (ROOT / "docs" / "api", ROOT / "docs" / "_build")  # by `make docs`
PAGES = [
    page
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if not any(page.is_relative_to(folder) for folder in BUILT)
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    line: int
    """Of its first line, counted from 1."""
    text: str
    needs: str | None
    """The data set without which it cannot run."""


def blocks(name: str, *languages: str) -> list[Block]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.finditer(r"^(?:<!-- needs (\S+) -->\n)?```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    made = [Block(m[2], text[: m.start(3)].count("\n") + 1, m[3], m[1]) for m in found]
    return [block for block in made if block.language in languages]


def prose(name: str) -> str:
    """A page without its fenced blocks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_pages_a_newcomer_needs_are_there() -> None:
    wanted = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    wanted |= {f"docs/{page}.md" for page in ("algorithms", "experiments", "python", "performance")}
    assert wanted <= set(NAMES)


# -- Python -------------------------------------------------------------------------------------------------------------

FLOWER = "ignore:'click.utils:DeprecationWarning"
"""Of a module that Flower imports: not ours to mend."""
RUNNER = """
import json, sys
page, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, source in blocks:
    exec(compile("\\n" * (line - 1) + source, page, "exec"), names)
"""


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "python")])
def test_python_blocks_run(name: str, tmp_path: Path) -> None:
    run = [block for block in blocks(name, "python") if block.needs is None or is_stored(block.needs)]
    given = json.dumps([name, [[block.line, block.text] for block in run]])
    command = [sys.executable, "-W", "error", "-W", FLOWER, "-c", RUNNER]
    done = subprocess.run(command, input=given, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_a_model_and_data_of_ones_own() -> None:
    assert any("fv.simulate(" in block.text for block in blocks("README.md", "python"))


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_library_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for attribute in set(re.findall(r"\bfv\.(\w+)", text)):
        assert hasattr(fv, attribute), f"there is no fv.{attribute}"


# -- commands -----------------------------------------------------------------------------------------------------------


def commands(name: str) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of what the page would have a reader type."""
    for block in blocks(name, "bash", "console"):
        text = block.text.replace("\\\n", " ")
        for number, line in enumerate(text.splitlines()):
            typed = line.removeprefix("$ ") if block.language == "bash" or line.startswith("$ ") else ""
            words = shlex.split(typed, comments=True)
            if words:
                yield block.line + number, words


COMMANDS = [(name, line, words) for name in NAMES for line, words in commands(name)]
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(
    "words", [words for *_, words in COMMANDS], ids=[f"{name}:{line}" for name, line, _ in COMMANDS]
)
def test_commands_can_be_typed(words: list[str]) -> None:
    program = Path(words[0]).name
    if words[:3] == ["python", "-m", "fedvra"]:
        program, words = "fedvra", words[2:]
    if program == "fedvra":
        parsed(words[1:])
    elif program == "make":
        assert set(words[1:]) <= TARGETS
    elif program == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert program in ("pip", "pre-commit", "git", "cd"), f"{program} is not checked here"


def parsed(words: list[str]) -> None:
    """Raise unless verb, options and, as far as can be told without running, values are good."""
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no {words[0]}"
        command, words = found, words[1:]
    if words in (["--help"], ["--version"]):
        return
    assert not isinstance(command, click.Group)
    values = command.make_context("", list(words)).params
    if "recipe" in values:
        if values["recipe"] in ("all", "mine.yaml"):
            return
        only = values["only"].split(",") if values["only"] else []
        plan(load(values["recipe"]), int(values["seeds"] or 1), int(values["rounds"] or 1), only)
        return
    if "seeds" in values:
        parse_seeds(values.pop("seeds"))
    if "algorithms" in values:
        for variant in parse_variants(values.pop("algorithms")):
            configure({"task": "digits", "algorithm": variant.algorithm, "set": variant.given})
    if "config_file" in values:
        task = values.pop("task") or ("digits" if values.pop("config_file") else None)
        over = {name: tried.split(",") for name, tried in assignments("over", values.pop("over", ())).items()}
        aside = ("out", "as_json", "config_file", "target", "full")
        options = configure(*layers(task, None, {k: v for k, v in values.items() if k not in aside})).to_dict()
        for setting in settings_to_try({"options": options, "over": over, "seeds": [0]}):
            check(setting.planned[0].config.to_dict())


def check(options: dict[str, Any]) -> None:
    """What a config leaves to be found out when the run is built."""
    config = configure(options)
    parse_sampler(config.sampler, config.cohort).check(config.clients)
    parse_partition(config.split)
    MODELS.get(config.model)


def test_make_demo_and_make_test_are_the_first_commands() -> None:
    assert [words for name, _, words in COMMANDS if name == "README.md"][:2] == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "yaml")])
def test_config_files_are_valid(name: str) -> None:
    for block in blocks(name, "yaml"):
        check(yaml.safe_load(block.text))


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "toml")])
def test_entry_points_name_groups_that_are_read(name: str) -> None:
    homes = {"algorithms", "samplers", "models", "tasks", "data.partitions", "data.sources"}
    for block in blocks(name, "toml"):
        groups = tomllib.loads(block.text)["project"]["entry-points"]
        assert set(groups) <= {f"fedvra.{home}" for home in homes}


READERS: dict[str, Callable[[str], Any]] = {
    "`--sampler`": lambda text: parse_sampler(text, 10).check(100),
    "`--split`": parse_partition,
    "model": MODELS.get,
    "task": TASKS.get,
}
"""How to read the first column of a table, by its header."""


@pytest.mark.parametrize("header", READERS)
def test_what_tables_offer_to_type_can_be_typed(header: str) -> None:
    table = prose("docs/experiments.md").split(f"\n| {header} |")[1].split("\n\n")[0]
    offered = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    assert len(offered) > 2
    for text in offered:
        READERS[header](text)


def every_option(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            found |= every_option(inner)
    return found | {"--help"}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "docs/federation.md"])  # about other programs too
def test_options_in_the_text_exist(name: str) -> None:
    known = every_option(main)
    for quoted in re.findall(r"`([^`\n]+)`", prose(name)):
        assert set(re.findall(r"(?<!\S)--[a-z-]+", quoted)) <= known


# -- links --------------------------------------------------------------------------------------------------------------


def fedvra_rooms() -> set[str]:
    """The rooms that public names come from: each has a page in the reference."""
    return {home.split(".")[1] for home in fv._HOME_OF.values()}


def anchors(page: Path) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(str(page.relative_to(ROOT))), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    written = {f"api/{page}.md" for page in ("index", *fedvra_rooms())}  # by docs/api_pages.py, as the site is built
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(name)):
        if target in written:
            continue
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert file.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in anchors(file), f"{target}: there is no such heading"


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs").rglob("*.png"):
        assert picture.stat().st_size < 150_000


# -- tables -------------------------------------------------------------------------------------------------------------


def test_the_table_of_algorithms_is_that_of_the_registry() -> None:
    """In a process of its own: other tests may have registered algorithms in this one."""
    command = [sys.executable, "-m", "fedvra", "algorithms", "--markdown"]
    printed = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    written = page.split("<!-- fedvra algorithms --markdown -->\n")[1].split("<!-- end -->")[0]
    assert written == printed, "put the output of `fedvra algorithms --markdown` into docs/algorithms.md"


def shipped() -> dict[str, Any]:
    """The algorithms of this package by label."""
    return {kind.label: kind for _, kind in REGISTRY.items() if kind.__module__.startswith("fedvra.algorithms.")}


def test_every_algorithm_has_its_page_and_curve() -> None:
    """In a process of its own, as above; the pages are written from the classes."""
    source = ROOT / "scripts" / "algorithm_pages.py"
    code = f"import runpy, json; names = runpy.run_path({str(source)!r}); figures = json.loads(names['FIGURES'].read_text())\n"
    code += "print(json.dumps({name: names['page'](kind, figures) for name, kind in names['shipped']().items()}))"
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\nnew algorithm? run python scripts/algorithm_pages.py --demo"
    made = json.loads(done.stdout)
    listed = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    assert {page.stem for page in (ROOT / "docs/algorithms").glob("*.md")} == set(made)
    for name, text in made.items():
        page = ROOT / "docs" / "algorithms" / f"{name}.md"
        assert page.read_text(encoding="utf-8") == text, "run python scripts/algorithm_pages.py"
        assert (ROOT / "docs" / "images" / "algorithms" / f"{name}.svg").is_file()
        assert f"](algorithms/{name}.md)" in listed
        assert "## When to use it\n\n\n" not in text, f"{name} does not say when to use it: give its class a `suits`"


def coefficients_shown(name: str) -> dict[str, list[str]]:
    """The formulas of the table below ``<!-- coefficients -->``, by label."""
    table = (ROOT / name).read_text(encoding="utf-8").split("<!-- coefficients -->\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[0][1:] == ["sigma", "gamma", "alpha", "w", "s", "kappa"]
    return {label.strip(): cells for labels, *cells in rows[2:] for label in labels.split(",")}


def test_the_table_of_coefficients_is_complete() -> None:
    assert set(coefficients_shown("docs/algorithms.md")) == set(shipped())


def test_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    badges = set(re.findall(r"!\[([^\]]+)\]\(https://img.shields.io", (ROOT / "README.md").read_text(encoding="utf-8")))
    tested = [each.rsplit(" ", 1)[1] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert badges == {f"Python {', '.join(tested)}", f"Licence {project['license'].replace('-', ' ')}", "AAAI 2023"}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 1200


@pytest.mark.parametrize("label", coefficients_shown("docs/algorithms.md"))
def test_coefficients_are_what_the_table_says(label: str) -> None:
    kind = shipped()[label]
    total, members = 7, np.array([0, 2, 3, 6])
    rng = np.random.default_rng(0)
    p, omega, eta = rng.uniform(0.1, 1, total), rng.dirichlet(np.ones(total)), rng.uniform(0.01, 0.1, total)
    everyone = Cohort(0, total, np.arange(total), p, rng.integers(1, 9, total), np.ones(total, int), omega, eta)
    arrays = ("clients", "p", "steps", "samples", "omega", "eta")
    cohort = dataclasses.replace(everyone, **{name: getattr(everyone, name)[members] for name in arrays})

    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if hints[field.name] == Setting:  # another value for every client
            given[field.name] = rng.uniform(0.5, 2, total)
        elif hints[field.name] is float and field.name != "skip":
            given[field.name] = 0.7
    found = kind(**given).coefficients(cohort, lambda: everyone)

    names: dict[str, Any] = {"p": cohort.p, "Q": cohort.steps, "eta": cohort.eta, "omega": cohort.omega, "sum": np.sum}
    names |= {name: value[members] if np.ndim(value) else value for name, value in given.items()}
    if "gamma" in given:
        names["beta"] = 1 / np.sum(omega * given["gamma"])
    cells = coefficients_shown("docs/algorithms.md")[label]
    sigma, gamma, alpha, w, s, kappa = (eval(cell.strip("`").replace("^", "**"), {}, names) for cell in cells)
    totals = Totals(float(cohort.omega.sum()), float((cohort.omega * cohort.steps).sum()))
    assert (found.sigma, found.kappa) == (sigma, pytest.approx(kappa))
    assert found.scale(totals) == pytest.approx(s)
    for computed, shown in ((found.gamma, gamma), (found.alpha, alpha), (found.w, w)):
        assert computed == pytest.approx(np.broadcast_to(shown, len(members)))
