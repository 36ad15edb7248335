"""What the studies of objects share: a run as a call of ``simulate`` in its folder, several of them at a time."""

from __future__ import annotations

import inspect
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedvra.algorithms.base import Algorithm
from fedvra.core.errors import DivergedError, UsageError, require, unknown_name
from fedvra.runs.algorithm_text import settings_of, written
from fedvra.runs.described import described
from fedvra.runs.files import RunFolder
from fedvra.runs.variants import labelled
from fedvra.show.comparison import Run
from fedvra.state.folders import locked, make_folder, require_unused
from fedvra.studies.parallel import Job, on_this_machine
from fedvra.studies.progress import Progress, follow
from fedvra.studies.simulation import simulate

MARK = "objects"
"""In a plan: these runs were made of Python objects."""
LEFT_OUT = ("algorithm", "seed", "out", "progress", "keep", "report")
Study = TypeVar("Study")


def simulate_into(
    algorithm: Algorithm, problem: Any, data: Any, seed: int, out: Path, options: Mapping[str, Any], workers: int | str
) -> None:
    """One run of a study, in whatever process it is to be made; one that went further already stays as it is."""
    folder = RunFolder(out)
    if folder.summary_file.exists() and folder.summary().rounds > options["rounds"]:
        return
    given = {"workers": workers, **options, "seed": seed, "out": out, "progress": False, "report": False}
    with suppress(DivergedError):  # which its summary says
        simulate(algorithm, problem=made_for(problem, seed), data=made_for(data, seed), **given)


def make_runs(
    work: Sequence[tuple[str, str, Callable[[int | str], None]]],
    place: Path,
    rounds: int,
    progress: bool | None,
    at_once: int | None,
) -> None:
    """Make these runs, and show how far they are."""
    import matplotlib.figure  # noqa: F401 - here once, and not in the process of every run

    display = Progress.of(progress, {name: RunFolder(place / folder) for name, folder, _ in work}, rounds)
    follow([Job(name, play) for name, _, play in work], on_this_machine(len(work), at_once), display)


def try_out(algorithm: Algorithm, problem: Any, data: Any, options: Mapping[str, Any]) -> None:
    """Raise now what a run would refuse when it begins."""
    given = {name: value for name, value in options.items() if name not in ("track", "targets", "checkpoint_every")}
    simulate(algorithm, problem=problem, data=data, **{**given, "rounds": 0, "workers": 1, "progress": False})


def made_for(made: Any, seed: int) -> Any:
    """What is given for every seed alike, or made for one."""
    return made(seed) if inspect.isroutine(made) or isinstance(made, partial) else made


def run_in(label: str, path: Path) -> Run:
    folder = RunFolder(path)
    return Run(label, folder.summary(), folder.metrics())


def named_algorithms(algorithms: Iterable[Algorithm] | Mapping[str, Algorithm]) -> dict[str, Algorithm]:
    """Labels that tell them apart: their own, with the hyper-parameters in which those of one name differ."""
    if isinstance(algorithms, Mapping):
        found = {str(label): algorithm for label, algorithm in algorithms.items()}
    else:
        listed = list(algorithms)
        for each in listed:
            require(
                isinstance(each, Algorithm),
                f"algorithms must be objects such as fv.FedVRA(), got {getattr(each, '__name__', repr(each))}.",
            )
        found = {}
        for each in listed:
            same = [settings_of(other) for other in listed if other.label == each.label]
            differing = {
                name: value
                for name, value in settings_of(each).items()
                if any(described(other.get(name)) != described(value) for other in same)
            }
            label = labelled(each.label, {name: shown(name, value) for name, value in differing.items()})
            require(label not in found, f"{label} is there twice: name each algorithm and setting once.")
            found[label] = each
    require(bool(found), "name at least one algorithm to compare, e.g. [fv.FedVRA(), fv.FedAvg()].")
    return found


def shown(name: str, value: Any) -> Any:
    """A setting in a table: as a config file has it, or described."""
    try:
        return described(written(name, value))
    except UsageError:
        return described(value)


def seeds_of(seeds: Iterable[int]) -> list[int]:
    listed = [int(seed) for seed in ([seeds] if isinstance(seeds, int) else seeds)]
    require(bool(listed), "name at least one seed.")
    require(len(set(listed)) == len(listed), f"every seed is run once, but {listed} names one twice.")
    return listed


def require_known(options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(simulate).parameters if name not in LEFT_OUT]
    for name in options:
        if name not in known:
            raise unknown_name("argument of a study", name, known)
    for name in ("sampler", "work", "rounds"):
        require(name in options, f"a study needs {name}=, as fv.simulate does.")


def slug_of(label: str) -> str:
    """As the name of a folder.

    >>> slug_of("FedVRA (a=5.0, d=1/p)")
    'FedVRA_a=5.0_d=1_p'
    """
    return re.sub(r"[^\w.=+-]+", "_", label).strip("_")


class Temporary:
    """A folder that goes when nobody holds this any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedvra-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def place_of(out: str | Path | None) -> tuple[Path, Temporary | None]:
    """The folder of a study, and what keeps it, where it is a temporary one."""
    if out is not None:
        return Path(out), None
    temporary = Temporary()
    return temporary.path, temporary


def ours(place: Path, plan: str) -> AbstractContextManager[None]:
    """Have the folder to ourselves: an unused one, or one that the same kind of study began."""
    if not (place / plan).exists():
        require_unused(place)
        make_folder(place)
    elif f'"{MARK}"' not in (place / plan).read_text(encoding="utf-8"):
        raise UsageError(f"{place} was started on the command line: use `fedvra resume {place}`.")
    return locked(place)


def lasting(study: Study, owner: Temporary | None) -> Study:
    """A temporary folder lasts as long as what was made in it."""
    if owner is not None:
        object.__setattr__(study, "_temporary", owner)
    return study
