"""Which runs a report is about: those found in some folders, sorted into experiments and, in them, into groups.

A group is what differs in its seed alone and is shown as one line with a band; an experiment is the groups that differ in
algorithm and hyper-parameters alone, so that comparing them makes sense.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.errors import require
from fedvra.core.files import require_folder
from fedvra.core.goals import Target, in_order
from fedvra.runs.algorithm_text import label_of
from fedvra.runs.cache import Cache, Stored, fingerprint
from fedvra.runs.config import configure
from fedvra.runs.files import PLAN, Record, RunFolder
from fedvra.runs.options import RunConfig
from fedvra.runs.variants import labelled
from fedvra.show.rows import Outcome, Row, models_said
from fedvra.show.terminal import split_of

METHOD = ("algorithm", "deploy")
"""Besides hyper-parameters, what runs of one experiment may differ in."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[Stored]
    config: RunConfig
    """Of the first."""

    @property
    def counted(self) -> list[Stored]:
        """Those that means are taken over: the finished ones; without any, those that did not diverge; else all."""
        kinds = ([r for r in self.runs if r.status == "finished"], [r for r in self.runs if r.status != "diverged"])
        return next(filter(None, kinds), self.runs)

    @property
    def whole(self) -> bool:
        """Whether anything of it did not diverge: what did is not what axes are made for."""
        return any(run.status != "diverged" for run in self.runs)

    @property
    def metrics(self) -> list[list[Record]]:
        return [run.metrics for run in self.counted]

    @property
    def seeds(self) -> list[int]:
        return sorted(run.config["seed"] for run in self.runs)

    def row(self, targets: Sequence[Target]) -> Row:
        outcomes = [Outcome.of(run.status, run.metrics, run.seconds, targets, _metrics(run)) for run in self.runs]
        return Row.of_outcomes(self.label, outcomes, targets, partial=True)


def _metrics(run: Stored) -> dict[str, float]:
    """The run's own metrics at its end, where there is a summary that says which they are."""
    folder = RunFolder(run.where)
    return folder.summary().metrics if folder.summary_file.is_file() else {}


@dataclass(frozen=True)
class Experiment:
    """Groups that differ in algorithm and hyper-parameters alone."""

    title: str
    groups: list[Group]

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target that any of its runs was asked to report."""
        return in_order(target for group in self.groups for target in group.config.targets)

    def about(self) -> str:
        c = self.groups[0].config
        work = _counted(c.epochs, "epoch") if c.steps is None else _counted(c.steps, "step")
        models = models_said(self._deployed())
        who = f"{c.clients} clients, {split_of(c)}, {c.sampler} cohort of {c.cohort}"
        return f"{who}, {work} of local work, model {c.model}{models}"

    def _deployed(self) -> dict[str, str]:
        """Which models accuracies are of, by algorithm; by group where one algorithm has several."""
        each = [(label_of(group.config.algorithm), group.config.deploy or "x0") for group in self.groups]
        if len(set(each)) == len(dict(each)):
            return dict(each)
        return {group.label: deploy for group, (_, deploy) in zip(self.groups, each, strict=True)}


def _counted(number: object, what: str) -> str:
    """
    >>> _counted(1, "epoch"), _counted("1-5", "epoch")
    ('1 epoch', '1-5 epochs')
    """
    return f"{number} {what}{'' if str(number) == '1' else 's'}"


def gather(places: Iterable[str | Path]) -> list[Experiment]:
    """The runs in and below some folders: run folders, and the files of results that ``fedvra reproduce`` writes."""
    folders = [Path(place) for place in places]
    for folder in folders:
        require_folder(folder)
    longest: dict[str, Stored] = {}
    for run in Cache(folders).every():
        key = fingerprint(configure(run.config))
        if key not in longest or run.rounds > longest[key].rounds:  # the same run twice, say in a folder and in results
            longest[key] = run
    require(
        bool(longest),
        f"there is no run with a finished round in {', '.join(map(str, folders))}: name a folder that `fedvra run`, "
        "`compare` or `reproduce` wrote.",
    )
    planned = _planned(folders)
    order = {folder: k for k, folder in enumerate(planned)}
    runs = sorted(longest.values(), key=lambda run: order.get(run.where, len(order)))
    return _experiments(runs, planned)


def _planned(folders: Iterable[Path]) -> dict[Path, str]:
    """Folder to label, in the order in which comparisons have them."""
    plans = [plan for folder in folders for pattern in (PLAN, f"*/{PLAN}") for plan in sorted(folder.glob(pattern))]
    return {
        plan.parent / each["folder"]: each["label"] for plan in plans for each in json.loads(plan.read_text("utf-8"))
    }


def _experiments(runs: list[Stored], planned: Mapping[Path, str]) -> list[Experiment]:
    experiments: dict[Any, dict[Any, list[Stored]]] = {}
    for run in runs:
        setting, method = _setting(run.config), _method(run.config)
        experiments.setdefault(_key(setting), {}).setdefault(_key(method), []).append(run)
    settings = [_setting(next(iter(groups.values()))[0].config) for groups in experiments.values()]
    titles = [_title(setting, settings) for setting in settings]
    return [
        Experiment(title, _groups([sorted(group, key=_seed) for group in groups.values()], planned))
        for title, groups in zip(titles, experiments.values(), strict=True)
    ]


def _seed(run: Stored) -> int:
    return int(run.config["seed"])


def _groups(groups: list[list[Stored]], planned: Mapping[Path, str]) -> list[Group]:
    """With labels that tell them apart: those of the comparison they are from, else made by :func:`_labels`."""
    named = [planned.get(group[0].where) for group in groups]
    distinct = None not in named and len(set(named)) == len(named)
    if not distinct:
        groups = _in_order(groups)
    labels = named if distinct else _labels([_method(group[0].config) for group in groups])
    return [Group(str(label), group, configure(group[0].config)) for label, group in zip(labels, groups, strict=True)]


def _in_order(groups: list[list[Stored]]) -> list[list[Stored]]:
    """The settings of one algorithm side by side, by their values: a=2 before a=10. Algorithms stay as they came."""
    first = {group[0].config["algorithm"]: k for k, group in reversed(list(enumerate(groups)))}

    def place(group: list[Stored]) -> tuple[int, list[tuple[bool, float, str]]]:
        values = [value for name, value in _method(group[0].config).items() if name.startswith("set.")]
        numbers = [value if isinstance(value, int | float) else None for value in values]
        return first[group[0].config["algorithm"]], [
            (number is None, 0.0 if number is None else float(number), shown(value))
            for number, value in zip(numbers, values, strict=True)
        ]

    return sorted(groups, key=place)


def _labels(methods: list[dict[str, Any]]) -> list[str]:
    """Hyper-parameters are named where an algorithm is there more than once.

    >>> _labels([{"algorithm": "fedprox", "set.mu": 0.1}, {"algorithm": "fedprox", "set.mu": 1.0}, {"algorithm": "fedavg"}])
    ['FedProx (mu=0.1)', 'FedProx (mu=1)', 'FedAvg']
    """
    made = []
    for method in methods:
        same = [other for other in methods if other["algorithm"] == method["algorithm"]]
        differing = {name: value for name, value in method.items() if any(other[name] != value for other in same)}
        made.append(labelled(method["algorithm"], {n.removeprefix("set."): v for n, v in differing.items()}))
    return made


def _title(setting: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> str:
    """The task, and whatever else tells this experiment from the others."""
    others = [other for other in all_settings if other["task"] == setting["task"]]
    names = sorted({name for other in others for name in other if other.get(name) != setting.get(name)})
    return ", ".join([setting["task"], *(f"{name} {shown(setting.get(name))}" for name in names)])


def _setting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides a run's numbers but the method, the seed, and the number of rounds."""
    decisive = configure(config).flat(deciding=True)
    left_out = (*METHOD, "seed", "rounds")
    return {name: value for name, value in decisive.items() if name not in left_out and not name.startswith("set.")}


def _method(config: Mapping[str, Any]) -> dict[str, Any]:
    decisive = configure(config).flat(deciding=True)
    return {name: value for name, value in decisive.items() if name in METHOD or name.startswith("set.")}


def _key(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, shown(value)) for name, value in options.items()))


def shown(value: Any) -> str:
    """An option's value as people write it.

    >>> shown(0.10), shown(10.0), shown([1.0, 2.5]), shown(None)
    ('0.1', '10', '1,2.5', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
