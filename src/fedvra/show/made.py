"""Where a report's numbers come from: the command, version, commit, date and machine of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from fedvra import __version__
from fedvra.runs.cache import Stored
from fedvra.runs.files import RunFolder
from fedvra.runs.provenance import Provenance
from fedvra.show.gather import Experiment


def made(experiments: Sequence[Experiment]) -> dict[str, str]:
    """For people, by name. Only the runs' files are read, no clock, so the same runs give the same page.

    Several runs may come from several commands or commits: all of them are named, in the order of the runs.
    """
    runs = [run for experiment in experiments for group in experiment.groups for run in group.runs]
    known = [found for run in runs if (found := Provenance.read(RunFolder(run.where).provenance_file)) is not None]
    files = [file for run in runs for file in (RunFolder(run.where).metrics_file, run.where) if file.is_file()]
    latest = max((file.stat().st_mtime for file in files), default=None)
    when = "" if latest is None else datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M UTC")
    said = {
        "command": _each(known, "command"),
        "fedvra": _each(known, "version") or __version__,
        "Python": _each(known, "python"),
        "PyTorch": _each(known, "torch"),
        "commit": _each(known, "commit") or ("none: started outside of a git repository" if known else ""),
        "first run started": min((each.started for each in known), default=""),
        "last round written": when,
        "machine": _each(known, "machine"),
        "runs": str(len(runs)),
        "to repeat the first run": _again(runs),
    }
    return {name: text for name, text in said.items() if text}


def _each(known: Sequence[Provenance], name: str) -> str:
    return "; ".join(dict.fromkeys(text for each in known if (text := getattr(each, name))))


def _again(runs: Sequence[Stored]) -> str:
    folders = [run.where for run in runs if run.where.is_dir()]
    return f"fedvra run --config {folders[0].name}/config.yaml" if folders else ""
