"""``fedvra federation``: real federations, with Flower as the engine."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from fedvra.cli._options import Named, json_option


@click.group(cls=Named, invoke_without_command=True, short_help="A real federation of processes, with Flower.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """A real federation, with Flower as the engine (docs/federation.md says how to deploy one on several machines).

    \b
    Examples:
      fedvra federation demo
      fedvra federation sign path/to/app --key author --out signatures
      fedvra federation status /var/lib/fedvra-server
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command(short_help="Run FedVRA on digits with processes on this machine.")
@click.option("--nodes", type=click.IntRange(1, 50), default=3, show_default=True, help="SuperNodes, one client each.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--tls", is_flag=True, help="As on several machines: TLS, nodes with keys, a signed app, a gate.")
@click.option(
    "--workers/--no-workers", default=True, show_default=True, help="Warm workers, or a new Python per message."
)
@click.option(
    "--masked", is_flag=True, help="With masked sums: the server sees no single upload (three nodes or more)."
)
@click.option("--out", metavar="DIR", help="Keep logs, books and keys here. [default: a temporary folder]")
def demo(nodes: int, rounds: int, tls: bool, workers: bool, masked: bool, out: str | None) -> None:
    """Start a SuperLink and SuperNodes on this machine, run FedVRA on digits, and stop them all.

    Every node is a process of its own that holds its own file of handwritten digits. With --tls rounds are faster: the gate
    hands a message over when it is there, where Flower's nodes ask every three seconds.

    \b
    Examples:
      fedvra federation demo
      fedvra federation demo --nodes 2 --tls --rounds 3
      fedvra federation demo --masked
    """
    from fedvra.core.errors import require
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.demo import run

    require(not masked or nodes >= 3, f"--masked hides an upload among three or more: {nodes} nodes are too few.")
    if out is not None:
        folder = Path(out).resolve()
        require(not folder.exists() or not any(folder.iterdir()), f"{out} is not empty: choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for line in run(nodes, rounds, tls, folder, workers, masked):
            click.echo(line)
        click.echo(f"Written to {folder}")
        return
    with tempfile.TemporaryDirectory(prefix="fedvra-federation-") as temporary:
        for line in run(nodes, rounds, tls, Path(temporary), workers, masked):
            click.echo(line)


@command.command(short_help="Let SuperNodes through to a SuperLink, and nobody else.")
@click.option("--listen", metavar="HOST:PORT", required=True, help="Where SuperNodes connect to, e.g. 0.0.0.0:8443.")
@click.option("--superlink", metavar="HOST:PORT", default="127.0.0.1:8000", show_default=True)
@click.option(
    "--ssl-ca-certfile", metavar="FILE", required=True, help="The authority that signed the SuperLink's certificate."
)
@click.option("--ssl-certfile", metavar="FILE", required=True, help="The server's certificate.")
@click.option("--ssl-keyfile", metavar="FILE", required=True, help="The certificate's private key.")
@click.option("--signatures", metavar="DIR", help="Signatures of apps, made by `fedvra federation sign`.")
def gate(
    listen: str, superlink: str, ssl_ca_certfile: str, ssl_certfile: str, ssl_keyfile: str, signatures: str | None
) -> None:
    """Let SuperNodes through to a SuperLink on loopback, and nobody else.

    Flower's SuperLink takes runs from anybody who can reach its port. Keep that port on loopback and let this proxy face the
    network: it passes on what a registered SuperNode needs, and turns everything else away.

    \b
    Example:
      fedvra federation gate --listen 0.0.0.0:8443 --ssl-ca-certfile ca.crt \\
        --ssl-certfile server.crt --ssl-keyfile server.key --signatures signatures
    """
    from fedvra.core.errors import require
    from fedvra.flower import require_flower

    require_flower()
    host, _, port = listen.rpartition(":")
    require(bool(host) and port.isdecimal(), f"--listen must be HOST:PORT, got {listen!r}.")
    for file in (ssl_ca_certfile, ssl_certfile, ssl_keyfile):
        require(Path(file).is_file(), f"there is no file {file}.")
    from fedvra.flower.certificates import Certificates
    from fedvra.flower.gate import serve

    tls = Certificates(ssl_ca_certfile, ssl_certfile, ssl_keyfile)
    serve(listen, superlink, tls, None if signatures is None else Path(signatures))


@command.command(short_help="Answer a SuperNode's messages without starting Python for each.")
@click.option("--supernode", metavar="HOST:PORT", default="127.0.0.1:9094", show_default=True, help="Where it listens.")
@click.option("--secret-file", metavar="FILE", help="The SuperNode's --superexec-auth-secret-file.")
@click.option("--root-certificates", metavar="FILE", help="The SuperNode's --ssl-ca-certfile, where it has one.")
@click.option(
    "--preload", metavar="MODULE", multiple=True, help="What your app imports besides torch; can be repeated."
)
def worker(supernode: str, secret_file: str | None, root_certificates: str | None, preload: tuple[str, ...]) -> None:
    """Run the messages of a SuperNode that was started with --isolation process, each in a fork of a warm process.

    torch is imported once and not for every message. A SuperNode that is restarted is waited for.

    \b
    Example:
      openssl rand -out worker.secret 32
      flower-supernode --isolation process \\
        --superexec-auth-secret-file worker.secret ...
      fedvra federation worker --secret-file worker.secret
    """
    from fedvra.core.errors import require
    from fedvra.flower import require_flower

    require_flower()
    require(os.name == "posix", "a worker forks, which this system cannot: leave --isolation process out.")
    host, _, port = supernode.rpartition(":")
    require(bool(host) and port.isdecimal(), f"--supernode must be HOST:PORT, got {supernode!r}.")
    certificate = None if root_certificates is None else Path(root_certificates)
    require(certificate is None or certificate.is_file(), f"there is no file {root_certificates}.")
    from fedvra.flower.private import read_key
    from fedvra.flower.worker import work

    work(supernode, read_key(secret_file), certificate, preload)


@command.command(short_help="Sign an app, so that SuperNodes will run it.")
@click.argument("app", metavar="APP")
@click.option("--key", metavar="FILE", required=True, help="The author's key, from ssh-keygen -t ed25519.")
@click.option("--out", metavar="DIR", default="signatures", show_default=True, help="Where the gate looks for it.")
def sign(app: str, key: str, out: str) -> None:
    """Sign the Flower app in the folder APP as it is now; every change of it needs a new signature.

    \b
    Example:
      fedvra federation sign examples/flower --key author --out signatures
    """
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.signing import sign_app

    signed = sign_app(Path(app), Path(key), Path(out))
    click.echo(f"signed {app}, SHA-256 {signed.sha256}")
    click.echo(f"for the gate: {signed.signature}; for every SuperNode, as --trusted-entities: {signed.trusted}")


@command.command(short_help="Give a client number to another key.")
@click.argument("folder", metavar="FOLDER")
@click.argument("client", metavar="CLIENT", type=click.IntRange(0))
@click.option("--key", metavar="FILE", help="The new node's public key. [default: the next node that claims it]")
@click.option("--key-file", metavar="FILE", help="The secret the books are sealed with, where they are.")
def rebind(folder: str, client: int, key: str | None, key_file: str | None) -> None:
    """Give the client number CLIENT to another key in the server's books in FOLDER, while no run is under way on them.

    \b
    Examples:
      fedvra federation rebind /var/lib/fedvra-server 2
      fedvra federation rebind /var/lib/fedvra-server 2 --key new-node2.pub
    """
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.private import read_key
    from fedvra.flower.server_books import rebind

    was, now = rebind(Path(folder), client, None if key is None else Path(key), read_key(key_file))
    click.echo(
        f"client {client} belonged to {was[:16] or 'nobody'} and now belongs to {now[:16] or 'who claims it first'}"
    )


@command.command(short_help="Remove a client for good.")
@click.argument("folder", metavar="FOLDER")
@click.argument("client", metavar="CLIENT", type=click.IntRange(0))
@click.option("--key-file", metavar="FILE", help="The secret the books are sealed with, where they are.")
def expel(folder: str, client: int, key_file: str | None) -> None:
    """Remove the client CLIENT for good: the server with its books in FOLDER takes it out before its next round.

    The run may be under way, or be started later. What the client contributed to lam is taken out with it, so that the model
    converges to the minimiser of those who stay.

    \b
    Example:
      fedvra federation expel /var/lib/fedvra-server 3
    """
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.members import expel
    from fedvra.flower.private import read_key

    masked = expel(Path(folder), client, read_key(key_file))
    then = ", once its key has been taken out of every file of peers (sums are masked)" if masked else ""
    click.echo(f"client {client} leaves before the next round{then}")


@command.command(short_help="Show the state of a federation.")
@click.argument("folder", metavar="FOLDER")
@click.option("--key-file", metavar="FILE", help="The secret the books are sealed with, where they are.")
@json_option
def status(folder: str, key_file: str | None, as_json: bool) -> None:
    """Show the state of the federation with its books in FOLDER: rounds, members, who was counted, the last audit.

    It reads files alone: the run may be under way.

    \b
    Examples:
      fedvra federation status /var/lib/fedvra-server
      fedvra federation status /var/lib/fedvra-server --json
    """
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.private import read_key
    from fedvra.flower.status import FederationStatus
    from fedvra.runs.files import finite
    from fedvra.show.terminal import Column, make_console, say, table

    found = FederationStatus.of(Path(folder), read_key(key_file))
    if as_json:
        click.echo(json.dumps(finite(found.to_dict()), indent=2))
        return
    console = make_console()
    for line in found.lines():
        say(console, line)
    columns = [
        Column("client", number=True),
        Column("state"),
        Column("samples", number=True),
        Column("joined", number=True, drop=2),
        Column("left", number=True, drop=1),
        Column("asked", number=True),
        Column("counted last", number=True),
        Column("key", drop=3),
    ]
    console.print(table(columns, [each.cells() for each in found.members]))


@command.command(short_help="Make a client's key for masked sums.")
@click.argument("client", metavar="CLIENT", type=click.IntRange(0))
@click.option("--out", metavar="DIR", default="masks", show_default=True, help="A folder for nothing else.")
def keys(client: int, out: str) -> None:
    """Make the key under which the client with the number CLIENT masks its uploads, on its own machine.

    The .key file stays there, and is not copied: what it was used for is written into it. The .pub file goes to all other
    clients, who put them one after the other into a file of peers and compare them by telephone. The server needs neither.

    \b
    Example:
      fedvra federation keys 0 --out masks
    """
    from fedvra.flower import require_flower

    require_flower()
    from fedvra.flower.mask_keys import make_key

    path, public, text = make_key(client, Path(out))
    click.echo(f"for this node, as fedvra-mask-key: {path}")
    click.echo(f"for the file of peers of every node: {public}")
    click.echo(f"client {client} has the key {text}")
