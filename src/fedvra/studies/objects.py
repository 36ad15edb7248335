"""``fv.compare`` and ``fv.tune``: studies of objects, for people with their own model and data.

Every run is a call of :func:`fedvra.simulate` into a folder of its own, so a study is resumed by making the same call again.
Tables, pictures and reports are those of ``fedvra compare`` and ``fedvra tune``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedvra.algorithms.base import Algorithm
from fedvra.core.errors import require
from fedvra.runs.algorithm_text import settings_of
from fedvra.runs.described import described
from fedvra.runs.files import PLAN, RunFolder, write_json
from fedvra.show.comparison import Comparison
from fedvra.show.page import write_report
from fedvra.show.searches import FILE as SEARCH
from fedvra.show.tuning import Trial, Tuning
from fedvra.studies import tuning
from fedvra.studies.halving import climb, rungs
from fedvra.studies.object_runs import (
    MARK,
    lasting,
    made_for,
    make_runs,
    named_algorithms,
    ours,
    place_of,
    require_known,
    run_in,
    seeds_of,
    shown,
    simulate_into,
    slug_of,
    try_out,
)


def compare(
    algorithms: Iterable[Algorithm] | Mapping[str, Algorithm],
    *,
    problem: Any,
    data: Any = None,
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    progress: bool | None = None,
    at_once: int | None = None,
    **options: Any,
) -> Comparison:
    """Run every algorithm with every seed; a table of means and spreads, curves, a report.

    Args:
        algorithms: objects, ``[fv.FedVRA(), fv.FedAvg()]``, or by the names they are to have in the table.
        problem: as for :func:`fedvra.simulate`; or a function of the seed that makes it.
        data: likewise. Unless it is a function, it is the same for every seed; the seed then decides cohorts, batches and,
            where the model is a function, its start.
        seeds: each gives every algorithm the same data, cohorts and batches.
        out: a folder, in which each run has its own. The same call again resumes what was interrupted. None: a temporary one,
            gone with the comparison.
        progress: None shows how far the runs are on a terminal and in a notebook; True prints a line for each everywhere.
        at_once: runs at a time, each in a process of its own with the cores shared among them; None: one per core. Callbacks
            are told in that process.
        options: ``sampler``, ``work``, ``rounds`` and all else that :func:`fedvra.simulate` takes.

    A run that diverges is part of the result, and the others continue.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> compared = compare([fv.FedVRA(), fv.FedAvg()], problem=costs, sampler=fv.Full(), work=fv.Steps(2), rounds=3)
    >>> [row.label for row in compared.rows()]
    ['FedVRA', 'FedAvg']
    """
    require_known(options)
    named = named_algorithms(algorithms)
    seeds = seeds_of(seeds)
    place, owner = place_of(out)
    cells = [(label, algorithm, seed) for label, algorithm in named.items() for seed in seeds]
    folders = [f"{slug_of(label)}/seed-{seed}" for label, _, seed in cells]
    plan = [{"label": label, "folder": folder, MARK: True} for (label, *_), folder in zip(cells, folders, strict=True)]
    for algorithm in named.values():
        try_out(algorithm, made_for(problem, seeds[0]), made_for(data, seeds[0]), options)
    with ours(place, PLAN):
        write_json(place / PLAN, plan)
        given = [
            partial(simulate_into, algorithm, problem, data, seed, place / folder, options)
            for (_, algorithm, seed), folder in zip(cells, folders, strict=True)
        ]
        rounds = int(options["rounds"])
        make_runs(
            [*zip([f"{c[0]}, seed {c[2]}" for c in cells], folders, given, strict=True)],
            place,
            rounds,
            progress,
            at_once,
        )
        runs = [run_in(label, place / folder) for (label, *_), folder in zip(cells, folders, strict=True)]
        comparison = Comparison(RunFolder(place / folders[0]).config(), runs, place)
        comparison.write()
        if any(run.metrics for run in runs):
            write_report([place], comparison.report_file)
    return lasting(comparison, owner)


def tune(
    algorithm: Algorithm,
    over: Mapping[str, Sequence[Any]],
    *,
    problem: Any,
    data: Any = None,
    seeds: Iterable[int] = (0,),
    target: Any = None,
    metric: str | None = None,
    full: bool = False,
    out: str | Path | None = None,
    progress: bool | None = None,
    at_once: int | None = None,
    **options: Any,
) -> Tuning:
    """Try every combination of the values in ``over`` with every seed, the poor ones for a part of the rounds.

    Args:
        algorithm: the one to tune, e.g. ``fv.FedDyn()``.
        over: hyper-parameters of the algorithm or arguments of :func:`fedvra.simulate` (``lr``, ``work``, ...), with values to
            try.
        target: rank by the rounds to this accuracy (in per cent), or to another figure, ``"f1=0.8"``; else by accuracy at the
            end, on the validation data where there are some.
        metric: rank by this figure of the records instead, e.g. one of ``metrics``.
        full: run every setting to the last round; see :func:`fedvra.studies.tuning.tune`.

    Everything else is as for :func:`compare`. ``found.best.given`` is the best setting.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> usual = {"problem": costs, "sampler": fv.Full(), "work": fv.Steps(2), "rounds": 3}
    >>> tune(fv.FedAvg(), {"lr": [0.01, 0.5]}, **usual).best.given
    {'lr': 0.5}
    """
    fields = settings_of(algorithm)
    require_known({**options, **{name: None for name in over if name not in fields}})
    require(bool(over), "say what to try, e.g. over={'lr': [0.01, 0.1]}.")
    lists = {name: list(values) for name, values in over.items()}
    for name, values in lists.items():
        require(len(values) > 0, f"{name}: name at least one value to try.")
        require(len({str(described(value)) for value in values}) == len(values), f"{name}: every value is tried once.")
    seeds = seeds_of(seeds)
    place, owner = place_of(out)
    candidates = []
    for k, tried in enumerate(itertools.product(*lists.values())):
        given = dict(zip(lists, tried, strict=True))
        made = dataclasses.replace(algorithm, **{name: value for name, value in given.items() if name in fields})
        rest = {**options, **{name: value for name, value in given.items() if name not in fields}}
        words = ", ".join(f"{name}={shown(name, value)}" for name, value in given.items())
        slug = slug_of(words) if len(words) < tuning.LONG else f"setting-{k + 1}"
        candidates.append(Candidate(given, f"{algorithm.label} ({words})", made, rest, slug))
    for each in candidates:
        try_out(each.algorithm, made_for(problem, seeds[0]), made_for(data, seeds[0]), each.options)
    rounds = int(options["rounds"])

    def play(numbers: Sequence[int], until: int) -> dict[int, Trial]:
        going = [candidates[i] for i in numbers]
        work = [
            (
                f"{each.label}, seed {seed}",
                f"{each.folder}/seed-{seed}",
                partial(
                    simulate_into,
                    each.algorithm,
                    problem,
                    data,
                    seed,
                    place / each.folder / f"seed-{seed}",
                    {**each.options, "rounds": until},
                ),
            )
            for each in going
            for seed in seeds
        ]
        make_runs(work, place, until, progress, at_once)
        runs = [[run_in(each.label, place / each.folder / f"seed-{seed}") for seed in seeds] for each in going]
        return {
            i: Trial(candidates[i].given, candidates[i].folder, made) for i, made in zip(numbers, runs, strict=True)
        }

    with ours(place, SEARCH):
        plan = {
            MARK: True,
            "over": {name: [shown(name, value) for value in values] for name, values in lists.items()},
            "seeds": seeds,
        }
        write_json(place / SEARCH, {"plan": plan, "result": None})
        ladder = [rounds] if full else rungs(rounds, len(candidates))
        trials = climb(len(candidates), ladder, lambda trial: trial.rank(target, metric), play)
        config = dataclasses.replace(
            RunFolder(place / candidates[0].folder / f"seed-{seeds[0]}").config(), rounds=rounds
        )
        found = Tuning(config, lists, trials, target, place, metric)
        found.write(plan, report=out is not None)
    return lasting(found, owner)


class Candidate(NamedTuple):
    """A combination of values, and what it makes of the algorithm and the other arguments."""

    given: dict[str, Any]
    label: str
    algorithm: Algorithm
    options: dict[str, Any]
    folder: str
