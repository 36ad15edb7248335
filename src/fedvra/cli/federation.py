"""``fedvra federation``: real federations, with Flower as the engine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


@click.group(invoke_without_command=True, short_help="A real federation of processes, with Flower.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """A real federation, with Flower as the engine (docs/federation.md says how to deploy one on several machines).

    \b
    Example:
      fedvra federation demo
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command()
@click.option("--nodes", type=click.IntRange(1, 50), default=3, show_default=True, help="SuperNodes, one client each.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--tls", is_flag=True, help="Encrypted, and with SuperNodes that have to prove who they are.")
@click.option("--out", metavar="DIR", help="Keep logs, books and keys here. [default: a temporary folder]")
def demo(nodes: int, rounds: int, tls: bool, out: str | None) -> None:
    """Start a SuperLink and SuperNodes on this machine, run FedVRA on digits, and stop them all.

    Every node is a process of its own that holds its own file of handwritten digits. A round takes about ten seconds,
    nearly all of it Flower starting a process per message.

    \b
    Examples:
      fedvra federation demo
      fedvra federation demo --nodes 2 --tls --rounds 3
    """
    from fedvra.errors import require
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.demo import run

    if out is not None:
        folder = Path(out).resolve()
        require(not folder.exists() or not any(folder.iterdir()), f"{out} is not empty: choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for line in run(nodes, rounds, tls, folder):
            click.echo(line)
        click.echo(f"Written to {folder}")
        return
    with tempfile.TemporaryDirectory(prefix="fedvra-federation-") as temporary:
        for line in run(nodes, rounds, tls, Path(temporary)):
            click.echo(line)
