"""A search over hyper-parameters and options of one algorithm: every combination, the poor ones stopped early.

from fedvra.studies.tuning import tune

found = tune({"alpha": [0.01, 0.1, 1]}, {"task": "digits", "algorithm": "feddyn", "rounds": 30}, out="runs/tuned")
print(found.best.given)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvra.callbacks.display import View
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require, unknown_name
from fedvra.core.goals import Target
from fedvra.runs import option_text
from fedvra.runs.algorithm_text import make_algorithm, settings_of
from fedvra.runs.config import BEFORE_DEPLOY, configure, from_now_on
from fedvra.runs.files import write_json
from fedvra.runs.options import OPTIONS
from fedvra.runs.variants import Variant
from fedvra.show.searches import FILE
from fedvra.show.tuning import Trial, Tuning
from fedvra.state.folders import locked, make_folder, require_unused
from fedvra.studies.comparing import Planned, play_all
from fedvra.studies.execution import check
from fedvra.studies.halving import climb, kept, require_judged, rungs

LONG = 100
"""Too long for the name of a folder."""
NOT_TUNED = ("task", "algorithm", "set", "rounds", "seed", "workers", "targets")


def tune(
    over: Mapping[str, Sequence[Any] | Floats | Ints],
    *layers: Mapping[str, Any],
    out: str | Path,
    seeds: Iterable[int] = (0,),
    target: Target | None = None,
    metric: str | None = None,
    full: bool = False,
    view: View | None = None,
) -> Tuning:
    """Try every combination of the values in ``over`` with every seed.

    Args:
        over: hyper-parameters of the algorithm or options of ``fedvra run`` (``lr``, ``epochs``, ...), with values to try.
        layers: options of ``fedvra run``, later ones winning; the algorithm is one of them.
        out: a folder that is not in use; each run has its own in it.
        target: rank by the rounds to this accuracy (in per cent) or other figure (``"f1=0.8"``); else by accuracy at the end.
        metric: rank by this figure of the records instead of the accuracy, e.g. ``"f1"`` or ``"test_loss"``. Accuracy is that
            on the validation data where there are some, so that the test data choose nothing.
        full: run every setting to the last round. Else, where there are more than two, all run for a third of the
            rounds (a ninth, then a third, from 27 settings on), and the best third of them, at least two, continues:
            successive halving (Jamieson and Talwalkar, 2016). The result of each is bitwise that of a full run.
        view: how runs are shown; not at all by default.
    """
    base, out, seeds = configure(*layers), Path(out), list(seeds)
    require(bool(over), "say what to try, e.g. --over alpha=0.01,0.1,1.")
    require(bool(seeds), "name at least one seed.")
    aim = None if target is None else option_text.target("target", target)
    lists = {
        name.replace("-", "_"): tried.tolist() if isinstance(tried, np.ndarray) else list(tried)
        for name, tried in over.items()
    }
    for name, tried in lists.items():
        require(len(tried) > 0, f"{name}: name at least one value to try.")
        require(len(set(map(str, tried))) == len(tried), f"{name}: every value is tried once.")
    plan = {
        "options": base.to_dict(),
        "over": lists,
        "seeds": seeds,
        "target": aim,
        "metric": metric,
        "full": full,
    }
    require_unused(out)
    seen: set[str] = set()
    for setting in settings_to_try(plan):
        values = {f"{name}={value}" for name, value in setting.given.items()}
        if values - seen:  # every value once, not every combination: that would take long
            check(setting.planned[0].config)
            seen |= values
    make_folder(out)
    with locked(out):
        require_unused(out)  # still: another process may have come first
        return _carry_out(plan, out, view)


def resume_tuning(
    out: str | Path,
    workers: int | str | None = None,
    view: View | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> Tuning:
    """Resume a search that was interrupted; the result is the same."""
    plan = json.loads((Path(out) / FILE).read_text(encoding="utf-8"))["plan"]
    require("options" in plan, f"the search in {out} was made of Python objects: make the same call of fv.tune again.")
    plan["options"] = {**BEFORE_DEPLOY, **plan["options"], **from_now_on(None, workers, engine, address)}
    with locked(Path(out)):
        return _carry_out(plan, Path(out), view)


def _later(ladder: Sequence[int], rung: int, settings: int, plan: Mapping[str, Any]) -> int:
    """Rounds that the rungs after this one will take."""
    total = 0
    for before, after in itertools.pairwise(ladder[rung:]):
        settings = kept(settings)
        total += settings * len(plan["seeds"]) * (after - before)
    return total


class Candidate(NamedTuple):
    """A combination of values, and its runs, one per seed."""

    given: dict[str, Any]
    folder: str
    planned: list[Planned]


def settings_to_try(plan: Mapping[str, Any]) -> list[Candidate]:
    """Every combination of the values in the plan's ``over``, on top of its ``options``, with its ``seeds``."""
    base, over = configure(plan["options"]), plan["over"]
    fields = settings_of(make_algorithm(base.algorithm, {}))
    options = [name for name in OPTIONS if name not in NOT_TUNED]
    for name in over:
        if name not in (*fields, *options):
            raise unknown_name(f"hyper-parameter of {base.algorithm} or option", name, [*fields, *options])
    made = []
    for k, values in enumerate(itertools.product(*over.values())):
        given = dict(zip(over, values, strict=True))
        layer = {name: value for name, value in given.items() if name not in fields}
        layer["set"] = {name: value for name, value in given.items() if name in fields}
        variant = Variant(base.algorithm, given)
        folder = variant.slug if len(variant.slug) < LONG else f"setting-{k + 1}"  # tables of many clients
        runs = [
            Planned(variant.label, f"{folder}/seed-{seed}", configure(plan["options"], layer, {"seed": seed}))
            for seed in plan["seeds"]
        ]
        made.append(Candidate(given, folder, runs))
    return made


def _carry_out(plan: dict[str, Any], out: Path, view: View | None) -> Tuning:
    """Rung by rung; what is there already is not run again."""
    write_json(out / FILE, {"plan": plan, "result": None})
    base, settings, target = configure(plan["options"]), settings_to_try(plan), plan["target"]
    metric = plan.get("metric")
    ladder = [base.rounds] if plan["full"] else rungs(base.rounds, len(settings))

    def play_until(numbers: Sequence[int], rounds: int) -> dict[int, Trial]:
        until = {
            i: [replace(each, config=replace(each.config, rounds=rounds)) for each in settings[i].planned]
            for i in numbers
        }
        if view is not None:
            coming = [(each.label, each.config) for i in numbers for each in until[i]]
            view.study(coming, _later(ladder, ladder.index(rounds), len(until), plan))
        made = iter(play_all([planned for i in numbers for planned in until[i]], out, view))
        found = {
            i: Trial(settings[i].given, settings[i].folder, list(itertools.islice(made, len(until[i]))))
            for i in numbers
        }
        require_judged(found[numbers[0]], metric)
        return found

    trials = climb(len(settings), ladder, lambda trial: trial.rank(target, metric), play_until)
    tuning = Tuning(base, plan["over"], trials, target, out, metric)
    tuning.write(plan)
    return tuning
