"""Closed doors, tried with real processes: what somebody gets who holds the authority's certificate and nothing else."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedvra.flower.certificates import write_author_key, write_node_key
from fedvra.flower.gate import MAX_BODY, ROUTES
from fedvra.flower.launcher import CONNECTION, LocalFederation, free_port
from fedvra.flower.signing import sign_app

pytestmark = pytest.mark.slow

OPEN = {route.decode() for route in ROUTES}
PROJECT = """\
[project]
name = "evil"
version = "1.0.0"
description = "What an intruder would run."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "intruder"

[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"

[tool.flwr.app.config]
folder = ""
"""
MODULE = """\
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes], timeout=300)
    for reply in replies:
        print("a node said:", reply.error.reason if reply.has_error() else "as you wish", flush=True)


@client.train()
def train(message, context):
    (Path(str(context.run_config["folder"])) / f"intruder-was-here-{time.time_ns()}").touch()
    return Message(RecordDict(), reply_to=message)
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with LocalFederation(2, tmp_path_factory.mktemp("closed"), secure=True) as federation:
        deadline = time.monotonic() + 300
        while federation.flwr("supernode", "list", CONNECTION).stdout.count("online") < 2:
            assert time.monotonic() < deadline
        yield federation


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    app = tmp_path / "evil"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "evil.py").write_text(MODULE)
    return app


def ask(closed: LocalFederation, method: str, target: str, body: bytes = b"") -> int:
    """The status of a request by somebody who has the authority's certificate, with the target as it stands."""
    context = ssl.create_default_context(cafile=str(closed.folder / "keys" / "ca.crt"))
    connection = HTTPSConnection("127.0.0.1", closed.gate_port, timeout=30, context=context)
    try:
        connection.putrequest(method, target)
        connection.putheader("content-type", PROTOBUF_MEDIA_TYPE)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_what_registered_nodes_need_is_to_be_had_from_outside(closed: LocalFederation) -> None:
    others = ["/", "/docs", "/openapi.json", "/health", "/v1/responses", "/v1/fleet", "/v1/fleet/"]
    tricks = [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "//v1/control/list-runs",
        "/v1/fleet/get-run/../../control/list-runs",
        "/V1/CONTROL/list-runs",
        "/v1/fleet/get-run?x=/v1/control/list-runs",
        "/v1/fleet/get-run%3f",
        "/v1/fleet/get-run/",
        "https://127.0.0.1/v1/control/list-runs",
    ]
    known = [path for _, path in PROTOBUF_REQUEST_TYPES]
    assert "/v1/control/start-run" in known
    assert "/v1/runtime/acquire-task" in known
    for path in [*known, *others, *tricks]:
        assert ask(closed, "POST", path) == (401 if path in OPEN else 404), path  # Fleet asks for a key
        assert ask(closed, "GET", path) == 404, path
    assert "/v1/fleet/register-node" in known
    assert "/v1/fleet/register-node" not in OPEN


def test_a_request_may_not_be_huge(closed: LocalFederation) -> None:
    with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):  # it may hang up while more is being sent
        assert ask(closed, "POST", "/v1/fleet/push-object", bytes(MAX_BODY + (1 << 20))) == 413
    assert ask(closed, "POST", "/v1/fleet/push-object") == 401  # and the gate is still there


def test_who_has_nothing_but_the_certificate_can_neither_register_nor_run(closed: LocalFederation, evil: Path) -> None:
    home = evil.parent / "intruder"
    home.mkdir()
    ca = closed.folder / "keys" / "ca.crt"
    (home / "config.toml").write_text(
        f'[superlink.theirs]\naddress = "127.0.0.1:{closed.gate_port}"\nroot-certificates = "{ca}"\n'
    )
    _, public = write_node_key(home / "keys", 0)
    before = [closed.flwr(*listing, CONNECTION).stdout for listing in (("supernode", "list"), ("list",))]
    environment = {**closed.environment, "FLWR_HOME": str(home)}
    for attempt in (["supernode", "register", str(public), "theirs"], ["run", str(evil), "theirs"], ["list", "theirs"]):
        done = subprocess.run(["flwr", *attempt], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode != 0, done.stdout
    after = [closed.flwr(*listing, CONNECTION).stdout for listing in (("supernode", "list"), ("list",))]
    assert [text.count("online") for text in after] == [text.count("online") for text in before]
    assert "evil" not in after[1]


def test_a_node_without_a_key_and_one_with_a_key_of_its_own_are_turned_away(closed: LocalFederation) -> None:
    ca = str(closed.folder / "keys" / "ca.crt")
    private, _ = write_node_key(closed.folder / "intruder-keys", 0)
    for extra in ([], ["--auth-supernode-private-key", str(private)]):
        command = [
            "flower-supernode",
            "--superlink",
            f"127.0.0.1:{closed.gate_port}",
            "--root-certificates",
            ca,
            *extra,
        ]
        with (closed.folder / "intruder.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--port", str(free_port())],
                env=closed.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert process.wait(300) != 0
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert "Failed to initialize the connection" in closed.log("intruder")


@pytest.mark.parametrize("signed", ["not at all", "by another"])
def test_a_node_runs_no_app_that_is_not_signed(signed: str, closed: LocalFederation, evil: Path) -> None:
    """Of somebody who did get at the Control port: he submits a run, and his code runs on no node."""
    if signed == "by another":
        sign_app(evil, write_author_key(evil.parent / "keys"), evil.parent / "signatures")
        for path in (evil.parent / "signatures").glob("*.json"):
            (closed.signatures / path.name).write_bytes(path.read_bytes())
    with closed.submit(evil, {"folder": evil.parent}, signed=False) as process:
        assert process.stdout is not None
        log = process.stdout.read()
    assert log.count("a node said: The FAB could not be verified.") == 2, log
    assert not list(evil.parent.glob("intruder-was-here-*"))


def test_the_same_app_signed_by_its_author_runs(closed: LocalFederation, evil: Path) -> None:
    """So it is the signature that made the difference."""
    with closed.submit(evil, {"folder": evil.parent}) as process:
        assert process.stdout is not None
        log = process.stdout.read()
    assert log.count("a node said: as you wish") == 2, log
    assert len(list(evil.parent.glob("intruder-was-here-*"))) == 2


def test_a_clientapp_ends_with_its_supernode(closed: LocalFederation, evil: Path) -> None:
    """Though nobody collects the dead SuperNode, as in a container without an init."""
    module = MODULE.replace("def train(message, context):", WAITS)
    (evil / "evil.py").write_text(module)
    with closed.submit(evil, {"folder": evil.parent}) as process:
        deadline = time.monotonic() + 300
        while len(list(evil.parent.glob("working-*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        node = closed.process("node0").pid
        assert "flwr-clientapp" in " ".join(group(node).values())
        os.kill(node, signal.SIGTERM)
        while "flwr-clientapp" in " ".join(group(node).values()):
            assert time.monotonic() < deadline + 30, group(node)
            time.sleep(0.2)
        process.terminate()


WAITS = """\
def train(message, context):
    from fedvra.flower.orphans import end_with_supernode

    end_with_supernode()
    (Path(str(context.run_config["folder"])) / f"working-{time.time_ns()}").touch()
    time.sleep(600)
"""


def group(leader: int) -> dict[int, str]:
    """The living processes of a group, and their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] != "Z":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
    return found
