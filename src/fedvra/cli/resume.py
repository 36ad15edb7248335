"""``fedvra resume``: resume a run, a comparison or a search that was interrupted."""

from __future__ import annotations

from pathlib import Path

import click

from fedvra.cli._options import json_option


@click.command(short_help="Resume a run, comparison or search after Ctrl-C or a crash.")
@click.argument("folder", metavar="DIR")
@click.option("--rounds", metavar="N", help="Continue to this round, also beyond the one the run was started for.")
@click.option("--workers", metavar="N", help="Worker processes from now on; they do not change the result.")
@click.option("--engine", metavar="NAME", help="local or ray from now on; it does not change the result either.")
@click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster: auto or HOST:PORT.")
@json_option
def command(
    folder: str, rounds: str | None, workers: str | None, engine: str | None, address: str | None, as_json: bool
) -> None:
    """Resume the run in DIR from its last checkpoint.

    The model, client state and metrics are bitwise those of a run that was never stopped (times aside). Rounds after the
    checkpoint are run again. A damaged checkpoint is skipped for the one before it; without any, the run starts over. In a
    comparison or a search, runs that have ended are kept and the others resumed.

    \b
    Examples:
      fedvra resume runs/mnist-fedvra-seed0
      fedvra resume runs/mnist-fedvra-seed0 --rounds 200 --workers 4
      fedvra resume runs/mnist-fedvra-seed0 --engine ray --address auto
    """
    from fedvra.core.files import require_run

    path = Path(folder)
    require_run(path, path.is_dir())

    from fedvra.callbacks.display import make_view
    from fedvra.cli import compare, run, tune
    from fedvra.core.errors import require
    from fedvra.runs.files import PLAN
    from fedvra.runs.options import OPTIONS
    from fedvra.show.searches import FILE as SEARCH
    from fedvra.show.terminal import make_console
    from fedvra.studies import tuning
    from fedvra.studies.comparing import resume_comparison

    last = None if rounds is None else OPTIONS["rounds"].metadata["read"]("rounds", rounds)
    processes = None if workers is None else OPTIONS["workers"].metadata["read"]("workers", workers)
    console = make_console(stderr=as_json)
    if (path / PLAN).is_file():
        view = make_view(console, lines=0)
        compare.present(resume_comparison(path, last, processes, view, engine, address), console, as_json)
        return
    if (path / SEARCH).is_file():
        require(rounds is None, f"{path} holds a search, whose rounds stay as they are: leave --rounds out.")
        view = make_view(console, lines=0)
        tune.present(tuning.resume_tuning(path, processes, view, engine, address), console, as_json)
        return
    from fedvra.runs.files import RunFolder
    from fedvra.studies.execution import resume

    files = RunFolder(path)
    config = files.config(last, processes, engine, address)
    summary = files.ended(config)
    if summary is not None:
        more = f"; --rounds N with N > {summary.rounds} extends it" if summary.status == "finished" else ""
        more = more if summary.stopped is None else f": {summary.stopped.removesuffix('.')}"
        console.print(f"The run in {path} {summary.status} after round {summary.rounds}{more}.", soft_wrap=True)
    else:
        summary = resume(path, [make_view(console)], rounds=last, workers=processes, engine=engine, address=address)
        run.report(summary, path)
    run.present(summary, path, console, as_json)
