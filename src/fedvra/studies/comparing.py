"""Several algorithms on one task over several seeds, each run in its own folder: in turn here, side by side on a cluster.

from fedvra.studies.comparing import compare

comparison = compare("fedvra,fedavg,feddyn:alpha=0.1", {"task": "digits", "rounds": 30}, seeds=[0, 1], out="runs/first")
print(comparison.markdown())
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvra.callbacks.display import View
from fedvra.core.errors import RunInterrupt, require
from fedvra.runs.config import BEFORE_DEPLOY, configure, from_now_on, make_engine
from fedvra.runs.files import PLAN, RunFolder, write_json
from fedvra.runs.options import RunConfig
from fedvra.runs.variants import Variant, parse_variants
from fedvra.show.comparison import Comparison, Run
from fedvra.state.folders import locked, make_folder, require_unused
from fedvra.studies.execution import check, execute, resume
from fedvra.studies.on_cluster import Cluster
from fedvra.studies.parallel import Job
from fedvra.studies.progress import Progress, follow


def compare(
    algorithms: str | Iterable[Variant],
    *layers: Mapping[str, Any],
    out: str | Path,
    seeds: Iterable[int] = (0,),
    view: View | None = None,
) -> Comparison:
    """Run every algorithm with every seed into ``out/ALGORITHM/seed-S``; write table and picture into ``out``.

    Args:
        algorithms: as on the command line, ``"fedvra,feddyn:alpha=0.1"``, or a list of variants.
        layers: options of ``fedvra run``, later ones winning, as for :func:`fedvra.runs.config.configure`.
        out: a folder that is not in use.
        seeds: each gives every algorithm the same data, cohorts and batches.
        view: how runs are shown; not at all by default.

    A run that diverges is part of the result, and the others continue. What cannot run at all is refused before the first.
    """
    variants = parse_variants(algorithms) if isinstance(algorithms, str) else list(algorithms)
    out, seeds = Path(out), list(seeds)
    require(bool(seeds), "name at least one seed.")
    require_unused(out)
    plan = [
        Planned(
            variant.label,
            f"{variant.slug}/seed-{seed}",
            configure(*layers, {"algorithm": variant.algorithm, "set": variant.given, "seed": seed}),
        )
        for variant in variants
        for seed in seeds
    ]
    for planned in plan[:: len(seeds)]:
        check(planned.config)
    make_folder(out)
    with locked(out):
        require_unused(out)  # still: another process may have come first
        return _carry_out(plan, out, view)


def resume_comparison(
    out: str | Path,
    rounds: int | None = None,
    workers: int | str | None = None,
    view: View | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> Comparison:
    """Resume a comparison that was interrupted: runs that have ended stay as they are, the others are resumed or started."""
    out = Path(out)
    changes = from_now_on(rounds, workers, engine, address)
    stored = json.loads((out / PLAN).read_text(encoding="utf-8"))
    require(
        all("config" in each for each in stored),
        f"the comparison in {out} was made of Python objects: make the same call of fv.compare again.",
    )
    plan = [
        Planned(each["label"], each["folder"], configure(BEFORE_DEPLOY, each["config"], changes)) for each in stored
    ]
    with locked(out):
        return _carry_out(plan, out, view)


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    folder: str
    """Within the comparison's own."""
    config: RunConfig

    def there(self, out: Path) -> Callable[[int | str], Run]:
        """Makes the run on whatever machine it is called, with so many workers of that machine."""
        out = out.resolve()

        def play_there(workers: int | str) -> Run:
            config = replace(self.config, engine="local", address=None, gpus_per_worker=0.0, workers=workers)
            return play(replace(self, config=config), out, None)

        return play_there

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "folder": self.folder, "config": self.config.to_dict()}


def _carry_out(plan: list[Planned], out: Path, view: View | None) -> Comparison:
    """Play what is left of the plan; write table, picture and report."""
    from fedvra.show.page import write_report  # which knows of plans

    write_json(out / PLAN, [planned.to_dict() for planned in plan])
    if view is not None:
        view.study([(planned.label, planned.config) for planned in plan])
    runs = play_all(plan, out, view)
    comparison = Comparison(plan[0].config, runs, out)
    comparison.write()
    if any(run.metrics or run.summary.status == "diverged" for run in runs):  # --rounds 0 leaves nothing to report
        write_report([out], comparison.report_file)
    return comparison


def play_all(plan: Sequence[Planned], out: Path, view: View | None) -> list[Run]:
    """All of these runs, one after the other; on a cluster as many at a time as it has room for."""
    config = plan[0].config
    engine = make_engine(config)
    left = [planned for planned in plan if RunFolder(out / planned.folder).ended(planned.config) is None]
    if engine is None or len(left) < 2:
        return [play(planned, out, view) for planned in plan]
    jobs = [Job(f"{planned.label}, seed {planned.config.seed}", planned.there(out)) for planned in left]
    folders = {job.name: RunFolder(out / planned.folder) for job, planned in zip(jobs, left, strict=True)}
    console = None if view is None else view.console
    try:
        with Cluster(engine, out, len(left), config.workers) as cluster:
            follow(jobs, cluster, Progress.of(view is not None, folders, config.rounds, console))
    except RunInterrupt:
        raise RunInterrupt(f"interrupted; `fedvra resume {out}` continues.") from None
    return [play(planned, out, None) for planned in plan]


def play(planned: Planned, out: Path, view: View | None) -> Run:
    """Start or resume this run; leave it as it is where it has ended."""
    folder, config = RunFolder(out / planned.folder), planned.config
    summary = folder.ended(config)
    if summary is not None:
        if view is not None:
            view.passed(planned.label, summary)
    else:
        looking = [] if view is None else [view]
        try:
            if folder.config_file.exists():
                summary = resume(
                    folder.path,
                    looking,
                    planned.label,
                    rounds=config.rounds,
                    workers=config.workers,
                    engine=config.engine,
                    address=config.address,
                )
            else:
                summary = execute(config, folder.path, looking, planned.label)
        except RunInterrupt:
            raise RunInterrupt(f"interrupted; `fedvra resume {out}` continues.") from None
    return Run(planned.label, summary, folder.metrics())
