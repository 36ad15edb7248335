"""The figure of docs/adaptive-how.md, to docs/images, and the tables of docs/adaptive-study.md, to standard output.

python benchmarks/adaptive_tables.py
python benchmarks/adaptive_tables.py write    into the page, each in the place of the table with the same head
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from adaptive import RESULTS, Results, Run
from adaptive_lists import DESIGN, HELD_OUT, RIVALS, WITHOUT, Trial
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedvra.policies import Auto, Pace
from fedvra.policies.pace import strongest as strongest_of_auto
from fedvra.policies.pace import visits
from fedvra.show.plots import STYLE, write_figure
from fedvra.show.style import ramp
from fedvra.theory.multiplier import second_moments, strongest

IMAGES = RESULTS.parent / "images"
PAGE = RESULTS.parent / "adaptive-study.md"
Table = Iterator[str]
"""The lines of a table in Markdown."""
SETTLED = 20
"""Falls are counted from the round after this one."""


def stability_figure() -> None:
    """Left: how fast directions of each stiffness converge. Right: the largest sigma by cohort, and where auto goes."""
    sigmas, taus, auto = (0.5, 1.0, 1.9, 3.0), np.geomspace(1e-2, 1e2, 80), Auto()
    cohorts = np.unique(np.round(np.geomspace(1, 100, 25)).astype(int))
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        for sigma, colour in zip(sigmas, ramp(len(sigmas)), strict=True):
            radii = [np.abs(np.linalg.eigvals(second_moments(sigma, 1.0, 10, 100, tau))).max() for tau in taus]
            left.semilogx(taus, radii, color=colour, lw=1.6, label=f"sigma = {sigma:g}")
        left.axhline(1, color="k", lw=0.8)
        left.set(ylim=(0.5, 1.3), xlabel="tau = h T", ylabel="spectral radius")
        left.set_title("Second moments, 10 of 100 clients, n = 1", loc="left")
        black = {"color": "k", "lw": 1.2}
        bounds = [strongest(visits(auto, m / 100), m, 100) for m in cohorts]
        right.semilogx(cohorts, bounds, color=ramp(1)[0], lw=1.6, label="converges below")
        right.semilogx(
            cohorts, [strongest_of_auto(auto, m / 100) for m in cohorts], "--", **black, label="auto's largest"
        )
        right.semilogx(cohorts, [Pace.first(auto, m / 100).sigma for m in cohorts], ":", **black, label="auto's first")
        right.set(ylim=(0, 2.2), xlabel="clients in a round, of 100", ylabel="sigma")
        right.set_title("Every stiffness, n = max(1, 10 p)", loc="left")
        for axes in (left, right):
            axes.legend(fontsize=8, frameon=False)
            axes.grid(alpha=0.3)
        write_figure(figure, IMAGES / "adaptive-stability.svg")


def first(curve: Sequence[float], goal: float) -> int | None:
    """The first round at or above the goal."""
    return next((r + 1 for r, value in enumerate(curve) if value >= goal), None)


def deployed(run: Run, goal: float) -> int | None:
    """The better of the mean of the clients' models and x0, where both were looked at."""
    found = [first(run[key], goal) for key in ("mean", "x0") if key in run]
    return min((r for r in found if r is not None), default=None)


def fall(run: Run) -> float:
    """The largest fall of the mean's accuracy from one round to the next, in points."""
    curve = run["mean"]
    return 100 * max(0.0, *(a - b for a, b in zip(curve[SETTLED:], curve[SETTLED + 1 :], strict=False)), 0.0)


def goals(trial: Trial) -> list[float]:
    return [target if trial.quadratic else target / 100 for target in trial.targets]


def compared(trial: Trial, seed: int, runs: dict[str, Run]) -> tuple[Run, dict[str, Run]] | None:
    """auto's run and those of the rivals, of which three at least were run; None where not."""
    ours = runs.get(f"{trial.name} | auto | {seed}")
    made = {name: run for name in RIVALS if (run := runs.get(f"{trial.name} | {name} | {seed}"))}
    return None if ours is None or len(made) < 3 else (ours, made)


def held_out_table() -> Table:
    runs = Results("held-out").runs
    yield from head("task", "seed", "target", "auto", "best rival", "ratio", *RIVALS)
    for trial in HELD_OUT:
        for seed in trial.seeds:
            if (both := compared(trial, seed, runs)) is None:
                continue
            ours, theirs = both
            for target, goal in zip(trial.targets, goals(trial), strict=True):
                mine, rival = deployed(ours, goal), {name: deployed(run, goal) for name, run in theirs.items()}
                there = {name: r for name, r in rival.items() if r is not None}
                best = min(there, key=lambda name: there[name]) if there else None
                yield row(
                    trial.name,
                    str(seed),
                    f"{target:g}%",
                    number(mine),
                    "none" if best is None else f"{best}: {there[best]}",
                    "" if best is None or mine is None else f"{mine / there[best]:.2f}",
                    *(number(rival[name]) if name in rival else "not run" for name in RIVALS),
                )


def ratios() -> list[tuple[str, float]]:
    """Of auto's rounds to those of the best rival, by target that both have reached."""
    found, runs = [], Results("held-out").runs
    for trial in HELD_OUT:
        for seed in trial.seeds:
            if (both := compared(trial, seed, runs)) is None:
                continue
            for target, goal in zip(trial.targets, goals(trial), strict=True):
                mine = deployed(both[0], goal)
                there = [r for run in both[1].values() if (r := deployed(run, goal)) is not None]
                if mine is not None and there:
                    found.append((f"{trial.name}, {target:g}%", mine / min(there)))
    return found


def rivals_table() -> Table:
    """Each rival alone, the same on all tasks, which is how one would use it."""
    runs = Results("held-out").runs
    yield from head("rival", "rounds of auto to its", "targets both reached", "auto alone", "the rival alone")
    for name in RIVALS:
        both_, ours, its = [], 0, 0
        for trial in HELD_OUT:
            for seed in trial.seeds:
                if (both := compared(trial, seed, runs)) is None:
                    continue
                for goal in goals(trial) if name in both[1] else ():
                    mine, rival = deployed(both[0], goal), deployed(both[1][name], goal)
                    if mine is not None and rival is not None:
                        both_.append(math.log(mine / rival))
                    ours += mine is not None and rival is None
                    its += mine is None and rival is not None
        yield row(name, f"{math.exp(float(np.mean(both_))):.2f}" if both_ else "", len(both_), ours, its)


def verdict_table() -> Table:
    """What was to be reached, and what was."""
    runs, found = Results("held-out").runs, ratios()
    judged = [(t, s, both) for t in HELD_OUT for s in t.seeds if (both := compared(t, s, runs)) is not None]
    missed = [
        f"{trial.name}, {target:g}%"
        for trial, _, (ours, theirs) in judged
        for target, goal in zip(trial.targets, goals(trial), strict=True)
        if deployed(ours, goal) is None and any(deployed(run, goal) is not None for run in theirs.values())
    ]
    ours_diverged = [
        t.name
        for t, _, (ours, theirs) in judged
        if "FedAvg" in theirs and "diverged" in ours and "diverged" not in theirs["FedAvg"]
    ]
    ends = [
        t.name
        for t, _, (ours, theirs) in judged
        if "FedAvg" in theirs
        and len(ours["mean"]) == len(theirs["FedAvg"]["mean"])
        and ours["mean"][-1] < theirs["FedAvg"]["mean"][-1]
    ]
    yield from head("to be reached", "reached")
    yield row("tasks and seeds judged", f"{len(judged)} of {sum(len(t.seeds) for t in HELD_OUT)}")
    if found:
        mean = math.exp(float(np.mean([math.log(ratio) for _, ratio in found])))
        where, worst = max(found, key=lambda each: each[1])
        yield row("geometric mean of the ratios at most 0.95", f"{mean:.2f} over {len(found)} targets")
        yield row("worst ratio at most 1.25", f"{worst:.2f} ({where})")
    yield row("every target that a rival reached", "yes" if not missed else f"not {'; '.join(missed)}")
    if judged:
        deepest = max(judged, key=lambda each: fall(each[2][0]))
        yield row("falls of at most 3 points after round 20", f"{fall(deepest[2][0]):.1f} ({deepest[0].name})")
    yield row("never below FedAvg at the end, where both ran to it", "yes" if not ends else f"not {'; '.join(ends)}")
    yield row("no divergence that FedAvg survives", "yes" if not ours_diverged else f"not {'; '.join(ours_diverged)}")


def design_table() -> Table:
    runs = Results("design").runs
    yield from head("task", "seed", "targets", "auto", "worst fall, points", "best rival of each")
    for trial in DESIGN:
        for seed in trial.seeds:
            run = runs.get(f"{trial.name} | auto | {seed}")
            if run is None:
                continue
            best = []
            for goal in goals(trial):
                made = {
                    name: deployed(r, goal) for name in RIVALS if (r := runs.get(f"{trial.name} | {name} | {seed}"))
                }
                there = {name: r for name, r in made.items() if r is not None}
                best.append(min(((r, name) for name, r in there.items()), key=lambda each: each[0], default=(0, "-")))
            unit = " orders" if trial.quadratic else "%"
            rounds = ", ".join(number(deployed(run, goal)) for goal in goals(trial))
            targets = ", ".join(f"{target:g}" for target in trial.targets) + unit
            rivals = ", ".join(f"{name}: {r}" if r else "-" for r, name in best) if seed == trial.seeds[0] else ""
            yield row(trial.name, seed, targets, rounds, "" if trial.quadratic else f"{fall(run):.1f}", rivals)


def ablation_table() -> Table:
    """Rounds beside those of the whole rule, over every target; what was not reached counts as half as many rounds again."""
    runs = Results("ablation").runs
    whole = next(iter(WITHOUT))
    yield from head(
        "what is changed", "rounds, geometric mean of the ratios", "targets missed", "diverged", "worst fall, points"
    )
    for name in WITHOUT:
        ratios_, missed, diverged, falls = [], 0, 0, [0.0]
        for trial in DESIGN:
            for seed in trial.seeds:
                ours, other = (runs.get(f"{trial.name} | {each} | {seed}") for each in (name, whole))
                if ours is None or other is None:
                    continue
                diverged += "diverged" in ours
                falls += [] if trial.quadratic else [fall(ours)]
                for goal in goals(trial):
                    mine, theirs = deployed(ours, goal), deployed(other, goal)
                    missed += mine is None
                    ratios_.append(math.log((mine or 1.5 * trial.rounds) / (theirs or 1.5 * trial.rounds)))
        mean = f"{math.exp(float(np.mean(ratios_))):.2f}" if ratios_ else ""
        yield row(name, mean, f"{missed} of {len(ratios_)}", diverged, f"{max(falls):.1f}")


def number(rounds: int | None) -> str:
    return "-" if rounds is None else str(rounds)


def head(*names: str) -> Table:
    yield ""
    yield row(*names)
    yield row(*("---" for _ in names))


def row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


TABLES = (verdict_table, rivals_table, held_out_table, design_table, ablation_table)
"""As docs/adaptive-study.md shows them, line by line."""


def with_tables(page: str) -> str:
    """The page with the tables of the runs that are kept now."""
    lines = page.splitlines()
    for table in TABLES:
        made = [line for line in table() if line]
        start = lines.index(made[0])
        end = next(k for k in range(start, len(lines)) if not lines[k].startswith("|"))
        lines[start:end] = made
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    stability_figure()
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for lines in TABLES:
            print("\n".join(lines()))
