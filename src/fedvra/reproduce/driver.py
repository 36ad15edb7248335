"""A recipe from beginning to end: which runs exist, how long the rest takes, running it, and the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedvra.core.errors import require
from fedvra.engines.ray_engine import Ray
from fedvra.reproduce.estimate import Estimate, estimate
from fedvra.reproduce.jobs import make_runs
from fedvra.reproduce.recipe import Recipe
from fedvra.reproduce.results import Result
from fedvra.reproduce.wanted import Wanted, plan
from fedvra.runs.cache import Cache, Stored, fingerprint
from fedvra.show.terminal import clock
from fedvra.state.folders import make_folder, require_writable
from fedvra.studies.on_cluster import Cluster
from fedvra.studies.parallel import Place, Processes

RUNS = "runs"
"""Within the folder of results: the folder of runs made for them."""


@dataclass(frozen=True)
class Request:
    """What is asked of :func:`reproduce`."""

    out: Path
    seeds: int | None = None
    """None: as many as the recipe says; likewise below."""
    rounds: int | None = None
    quick: bool = False
    only: Sequence[str] = ()
    look_in: Sequence[Path] = ()
    """Folders with further runs, or with results of an earlier call."""
    jobs: int = 1
    """Cores of this machine to use: so many runs at a time or, where fewer are missing, so many workers shared among them."""
    engine: Ray | None = None
    """A cluster to make the runs on, in place of this machine."""
    run: bool = True
    """False: make tables and figures from the runs there are."""
    keep_checkpoints: bool = False
    page: Path | None = None
    """A Markdown page that shows the table too."""

    def of(self, recipe: Recipe) -> list[Wanted]:
        """The runs it asks for."""
        seeds = self.seeds or (recipe.quick_seeds if self.quick else recipe.seeds)
        rounds = self.rounds or (recipe.quick_rounds if self.quick else recipe.rounds)
        return plan(recipe, seeds, rounds, self.only)


def reproduce(recipe: Recipe, request: Request, console: Console) -> Result:
    """Run what is missing of a recipe and write its results into ``request.out``."""
    wanted = request.of(recipe)
    require_writable(request.out, "--out")
    for place in request.look_in:
        require(place.is_dir(), f"{place} is not a folder: name one with runs or results in it with --runs.")
    require(
        request.page is None or request.page.is_file(),
        f"there is no page {request.page}: --page takes one that exists.",
    )
    cache = _cache(request)
    if request.run:
        missing = _distinct(w for w in wanted if cache.find(w.config) is None)
        expected, runs = estimate(missing, cache), request.out / RUNS
        with _place(request, len(missing)) as maker:
            console.print(announcement(recipe, wanted, missing, expected, maker.at_once), soft_wrap=True)
            if missing:
                make_folder(runs)
                make_runs(missing, expected.seconds, runs, maker, console, request.keep_checkpoints)
                cache = _cache(request)
    found: list[tuple[Wanted, Stored]] = []
    for each in wanted:
        run = cache.find(each.config) if request.run else cache.best(each.config)
        if run is not None:
            found.append((each, run))
    require(
        bool(found), f"there is no run for {recipe.name} yet: leave out --no-run, or name their folder with --runs."
    )
    result = Result(recipe, found, request.quick, len(wanted) - len(found))
    for path in result.write(request.out):
        console.print(f"Written to {path}", soft_wrap=True)
    if request.page is not None:
        result.into_page(request.page)
    return result


def with_runs(recipe: Recipe, request: Request) -> bool:
    """Whether there is any run for it already."""
    cache = _cache(request)
    return any(cache.best(each.config) for each in request.of(recipe))


def announcement(recipe: Recipe, wanted: list[Wanted], missing: list[Wanted], expected: Estimate, jobs: int) -> str:
    """What is about to happen, in one line."""
    there = len(_distinct(wanted)) - len(missing)
    if not missing:
        return f"{recipe.title}: all {there} runs are there."
    return (
        f"{recipe.title}: {there} runs are there, {len(missing)} to go, {jobs} at a time: "
        f"about {clock(expected.total(jobs))} ({expected.basis})."
    )


def _place(request: Request, runs: int) -> AbstractContextManager[Place]:
    """Where so many runs are made."""
    if request.engine is not None and runs:
        return Cluster(request.engine, request.out / RUNS, runs)
    return nullcontext(Processes(request.jobs, max(1, request.jobs // max(1, runs)), quiet=True))


def _cache(request: Request) -> Cache:
    return Cache([request.out / RUNS, *request.look_in])


def _distinct(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Each run once, however many rows it serves."""
    return list({fingerprint(each.config): each for each in wanted}.values())
