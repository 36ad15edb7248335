"""Recipes: one YAML file for each table or figure, with the rows, the options of ``fedvra run`` and the paper's own figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedvra.core.errors import UsageError, require, unknown_name
from fedvra.runs.config import read_config
from fedvra.runs.options import OPTIONS

Reading = Literal["final", "best", "last10"]
READINGS: tuple[Reading, ...] = ("final", "best", "last10")
"""Which accuracy a table's column is: of the last round, of the best, or the mean over the last ten."""


@dataclass(frozen=True)
class Printed:
    """A figure of the paper: a number (rounds, or per cent), perhaps with its spread; ``beyond`` marks "more than"."""

    value: float
    std: float | None = None
    beyond: bool = False

    @classmethod
    def read(cls, where: str, value: Any) -> Printed:
        """
        >>> Printed.read("R-90", ">500")
        Printed(value=500.0, std=None, beyond=True)
        """
        if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
            return cls(float(value[0]), float(value[1]))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(float(value))
        found = re.fullmatch(r">\s*(\d+)", value) if isinstance(value, str) else None
        if found is None:
            raise UsageError(f'{where}: write a number, [mean, spread] or ">500", got {value!r}.')
        return cls(float(found[1]), beyond=True)

    def text(self, digits: int) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{'>' if self.beyond else ''}{self.value:.{digits}f}{spread}"


@dataclass(frozen=True)
class RowSpec:
    """One line of a table, one curve of a figure: an algorithm with its hyper-parameters."""

    name: str
    options: Mapping[str, Any]
    """Of ``fedvra run``, over those of the case and of the recipe."""
    label: str | None = None
    """In tables and figures; None: the algorithm's own."""


@dataclass(frozen=True)
class Case:
    """One block of a table, one panel of a figure."""

    name: str
    title: str
    options: Mapping[str, Any]
    """Of ``fedvra run``, common to its rows."""
    rows: tuple[RowSpec, ...]
    targets: tuple[float, ...]
    paper: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)
    """By row, by column: "accuracy" or a target such as "90"."""
    of: str | None = None
    """The recipe whose runs these are; None: this one's own."""


@dataclass(frozen=True)
class Recipe:
    """A table or figure."""

    name: str
    title: str
    says: str
    """What the paper claims there, or what the study asks."""
    seeds: int
    rounds: int
    quick_seeds: int
    quick_rounds: int
    accuracy: Reading
    cases: tuple[Case, ...]

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        raise unknown_name(f"case of {self.name}", name, [case.name for case in self.cases])


def folder() -> Path:
    """Where the recipes are: in the checkout where there is one, else inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1] / "recipes"
    return checkout if (package.parents[1] / "pyproject.toml").is_file() and checkout.is_dir() else package / "recipes"


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def load(name: str) -> Recipe:
    """The recipe of that name, or in the file of that name."""
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    if name not in names():
        raise unknown_name("recipe", name, [*names(), "all"])
    return read(folder() / f"{name}.yaml")


def read(path: Path) -> Recipe:
    """Everything that can be wrong with a recipe's form is found here; its options are checked by ``configure``."""
    content = read_config(path)
    given = _Fields(f"the recipe {path.name}", content)
    targets = tuple(given.take("targets", list, []))
    rows = _rows(given)
    common = given.options("common")
    quick = _Fields(f"{given.where}: quick", given.take("quick", dict, {}))
    seeds, rounds = given.take("seeds", int), given.take("rounds", int)
    accuracy = given.take("accuracy", str, "final")
    require(accuracy in READINGS, f"{given.where}: accuracy must be one of {', '.join(READINGS)}, got {accuracy!r}.")
    recipe = Recipe(
        name=path.stem,
        title=given.take("title", str),
        says=given.take("says", str),
        seeds=seeds,
        rounds=rounds,
        quick_seeds=quick.take("seeds", int, 1),
        quick_rounds=quick.take("rounds", int, min(rounds, 30)),
        accuracy=accuracy,
        cases=tuple(_case(each, given.where, path, common, rows, targets) for each in given.take("cases", list)),
    )
    quick.require_empty()
    given.require_empty()
    counts = (recipe.seeds, recipe.rounds, recipe.quick_seeds, recipe.quick_rounds)
    require(min(counts) > 0, f"{given.where}: seeds and rounds must be at least 1.")
    _require_distinct(given.where, (case.name for case in recipe.cases))
    return recipe


def _case(
    content: Any, where: str, path: Path, common: Mapping[str, Any], rows: tuple[RowSpec, ...], targets: tuple[Any, ...]
) -> Case:
    given = _Fields(f"{where}: a case", content)
    name, title = given.take("name", str), given.take("title", str)
    given.where = f"{where}, case {name}"
    if "use" in given.content:
        other, _, its = given.take("use", str).partition("/")
        case = replace(read(path.with_name(f"{other}.yaml")).case(its), name=name, title=title, of=other)
        kept = given.take("only", list, [row.name for row in case.rows])
        given.require_empty()
        unknown = set(kept) - {row.name for row in case.rows}
        require(not unknown, f"{given.where}: {other}/{its} has no row {', '.join(sorted(unknown))}.")
        return replace(case, rows=tuple(row for row in case.rows if row.name in kept))
    own = _rows(given) or rows
    require(bool(own), f"{given.where}: say which rows there are.")
    case = Case(
        name=name,
        title=title,
        options={**common, **given.options("options")},
        rows=own,
        targets=tuple(float(target) for target in given.take("targets", list, targets)),
        paper=_printed(given, own),
    )
    given.require_empty()
    _require_distinct(given.where, (row.name for row in own))
    return case


def _rows(given: _Fields) -> tuple[RowSpec, ...]:
    rows = []
    for content in given.take("rows", list, []):
        row = _Fields(f"{given.where}: a row", content)
        name, label = row.take("name", str), row.take("label", str, None)
        rows.append(RowSpec(name, _options(f"{given.where}, row {name}", row.content), label))
    return tuple(rows)


def _printed(given: _Fields, rows: tuple[RowSpec, ...]) -> dict[str, dict[str, Printed]]:
    paper: dict[str, dict[str, Printed]] = {}
    for name, cells in given.take("paper", dict, {}).items():
        if name not in {row.name for row in rows}:
            raise unknown_name(f"row of {given.where}", str(name), [row.name for row in rows])
        paper[name] = {str(key): Printed.read(f"{given.where}, {name}, {key}", value) for key, value in cells.items()}
    return paper


def _options(where: str, content: Mapping[str, Any]) -> dict[str, Any]:
    for name in content:
        if name not in OPTIONS:
            raise unknown_name(f"option of fedvra run, in {where}", str(name), OPTIONS)
    return dict(content)


def _require_distinct(where: str, found: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in found:
        require(name not in seen, f"{where}: {name} is there twice; give each a name of its own.")
        seen.add(name)


class _Fields:
    """The entries of a mapping in a recipe, taken one by one; what is left over is a mistake."""

    def __init__(self, where: str, content: Any) -> None:
        require(isinstance(content, dict), f"{where} must hold `name: value` lines.")
        self.where, self.content = where, dict(content)

    def take(self, name: str, kind: type, *default: Any) -> Any:
        if name not in self.content:
            require(bool(default), f"{self.where} does not say {name}.")
            return default[0]
        value = self.content.pop(name)
        require(isinstance(value, kind), f"{self.where}: {name} must be {_KINDS[kind]}, got {value!r}.")
        return value

    def options(self, name: str) -> dict[str, Any]:
        return _options(self.where, self.take(name, dict, {}))

    def require_empty(self) -> None:
        require(not self.content, f"{self.where}: {', '.join(map(str, self.content))} means nothing here.")


_KINDS = {str: "text", int: "a whole number", list: "a list", dict: "`name: value` lines"}
