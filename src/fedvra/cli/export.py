"""``fedvra export``: the model that a run has come to, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedvra.cli._options import json_option


@click.command(short_help="The model of a run, as a file.")
@click.argument("folder", metavar="DIR")
@click.option("--out", metavar="FILE", default="model.safetensors", show_default=True, help="The file to write.")
@json_option
def command(folder: str, out: str, as_json: bool) -> None:
    """Write the model of the run in DIR, as of its last checkpoint, to a file.

    It is the one that the run is for (--deploy of `fedvra run`), its state_dict under the module's own names. fv.load_model
    reads it again, and so does whatever reads safetensors. A task without a module gives one vector, named x0.

    \b
    Example:
      fedvra export runs/mnist-fedvra-seed0 --out mnist.safetensors
    """
    from fedvra.core.files import require_run

    path = Path(folder)
    require_run(path, path.is_dir())

    from fedvra.core.deploy import parse_deploy
    from fedvra.runs.files import RunFolder
    from fedvra.studies.execution import export

    file, rounds = export(path, out)
    deploy = RunFolder(path).config().deploy
    if as_json:
        click.echo(json.dumps({"model": str(file), "round": rounds, "deploy": deploy}))
    else:
        click.echo(f"Model: {file} ({parse_deploy(deploy).words} after round {rounds})")
