"""A federation on this machine: a SuperLink and SuperNodes as processes of their own, talking over loopback.

For the demo and the tests. What it starts is what ``docs/federation.md`` has one start by hand on several machines.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fedvra.core.errors import FedvraError
from fedvra.flower.certificates import write_author_key, write_certificates, write_node_key
from fedvra.flower.private import MIN_KEY_BYTES, private_files
from fedvra.flower.signing import sign_app, write_trusted

CONNECTION = "here"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
STOP_SECONDS = 10.0
START_SECONDS = 300.0
"""Nobody waits so long for a server to start, unless the machine has much else to do."""
PORTS = range(20_000, 32_000)


class LocalFederation:
    """Starts on entering, stops every process it started on leaving.

    Args:
        nodes: how many SuperNodes; node i is client i.
        folder: for logs, keys, Flower's own files and the clients' ledgers.
        secure: TLS, SuperNodes that have to prove who they are and run signed apps only, and a gate between them and the
            SuperLink.
        environment: for all processes, besides this one's own.
        workers: a worker beside each SuperNode (``fedvra federation worker``), so that no message waits for Python to start.
    """

    preload: tuple[str, ...] = ()
    """What the app imports besides torch, for workers."""

    def __init__(
        self,
        nodes: int,
        folder: Path,
        secure: bool = False,
        environment: Mapping[str, str] | None = None,
        workers: bool = False,
    ) -> None:
        self.workers = workers
        self.nodes, self.folder, self.secure = nodes, folder, secure
        self.port, self.gate_port = free_port(), free_port()
        """Of the SuperLink, and of what SuperNodes see of it (the same where there is no gate)."""
        if not secure:
            self.gate_port = self.port
        here = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "flwr"),
            "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]),
            "OMP_NUM_THREADS": "1",  # several nodes share this machine
            **(environment or {}),
        }
        self.signatures = folder / "signatures"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalFederation:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- processes --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        (self.folder / "flwr").mkdir(parents=True, exist_ok=True)
        security, made = ["--insecure"], None
        connection = f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n'
        if self.secure:
            made = write_certificates(self.folder / "keys")
            security = ["--ssl-ca-certfile", made.ca, "--ssl-certfile", made.certificate, "--ssl-keyfile", made.key]
            security.append("--enable-supernode-auth")
            connection += f'root-certificates = "{made.ca}"\n'
        else:
            connection += "insecure = true\n"
        (self.folder / "flwr" / "config.toml").write_text(connection)
        command = ["flower-superlink", *security, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self._spawn("superlink", command)
        self._await_port("superlink", self.port)
        if made is not None:
            command = ["fedvra", "federation", "gate", "--listen", f"127.0.0.1:{self.gate_port}"]
            command += ["--superlink", f"127.0.0.1:{self.port}", "--ssl-ca-certfile", made.ca]
            command += ["--ssl-certfile", made.certificate, "--ssl-keyfile", made.key]
            self._spawn("gate", [*command, "--signatures", str(self.signatures)])
            self._await_port("gate", self.gate_port)
            write_trusted(write_author_key(self.folder / "keys"), self.signatures)
        for i in range(self.nodes):
            if self.secure:
                self.register(i)
            self.start_node(i)

    def start_node(self, i: int) -> None:
        """Start SuperNode i: one that was stopped comes back with its key and its ledger."""
        if self.secure:
            security = ["--root-certificates", str(self.folder / "keys" / "ca.crt")]
            security += ["--auth-supernode-private-key", str(write_node_key(self.folder / "keys", i)[0])]
            security += ["--trusted-entities", str(self.signatures / "trusted.yaml")]
        else:
            security = ["--insecure"]
        config = f'partition-id={self.client(i)} fedvra-folder="{self.ledger(i)}" {self.node_config(i)}'
        command = ["flower-supernode", *security, "--superlink", f"127.0.0.1:{self.gate_port}"]
        port = free_port()
        command += ["--port", str(port), "--node-config", config]
        if self.workers:
            secret = self._secret(i)
            worker = ["fedvra", "federation", "worker", "--supernode", f"127.0.0.1:{port}", "--secret-file", secret]
            self._end(f"worker{i}", signal.SIGTERM)
            self._spawn(f"worker{i}", [*worker, *(word for name in self.preload for word in ("--preload", name))])
            command += ["--isolation", "process", "--superexec-auth-secret-file", secret]
        self._spawn(f"node{i}", command)

    def _secret(self, i: int) -> str:
        """What SuperNode i and its worker know each other by."""
        path = self.folder / "keys" / f"worker{i}"
        if not path.exists():
            with private_files(path.parent):
                path.write_bytes(secrets.token_bytes(MIN_KEY_BYTES))
        return str(path)

    def register(self, i: int) -> None:
        """Tell the SuperLink the public key of SuperNode i."""
        _, public = write_node_key(self.folder / "keys", i)
        done = self.flwr("supernode", "register", str(public), CONNECTION)
        if done.returncode:
            raise FedvraError(f"SuperNode {i} could not be registered: {done.stdout[-500:]}")

    def stop_node(self, i: int, how: signal.Signals = signal.SIGTERM) -> None:
        self._end(f"node{i}", how)

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self._end(name, signal.SIGTERM)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """A process by name: "superlink", "node0", ..."""
        return self._processes[name]

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A ``flwr`` command, carried out."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def submit(self, app: Path, config: Mapping[str, Any], signed: bool = True) -> subprocess.Popen[str]:
        """``flwr run`` with the ServerApp's log on the returned process's stdout; the app is signed first where it must be."""
        if self.secure and signed:
            sign_app(app, write_author_key(self.folder / "keys"), self.signatures)
        words = [item for key, value in config.items() for item in ("--run-config", f"{key}={_toml(value)}")]
        return subprocess.Popen(
            ["flwr", "run", str(app), CONNECTION, *words, "--stream"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def client(self, i: int) -> int:
        """Which client SuperNode i says it is."""
        return i

    def node_config(self, i: int) -> str:
        """What else SuperNode i is told, as ``key=value`` with strings in quotes."""
        return ""

    def ledger(self, i: int) -> Path:
        """Where client i keeps its books."""
        return self.folder / f"node{i}"

    def log(self, name: str) -> str:
        """What a process ("superlink", "node0", ...) has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _spawn(self, name: str, command: list[str]) -> None:
        program = Path(sys.executable).parent / command[0]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(program), *command[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Flower starts processes of its own: they are stopped with it, as one group
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)  # whatever is left of the group
        process.wait()

    def _await_port(self, name: str, port: int, patience: float = START_SECONDS) -> None:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self._processes[name].poll() is not None:
                break
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        raise FedvraError(f"the {name} did not start; its log ends: {self.log(name)[-500:]}")


def free_port() -> int:
    """A port nobody listens on now, and not one of those that the system gives to connections: it might before it is used."""
    for port in secrets.SystemRandom().sample(PORTS, 1000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise FedvraError(f"there is no free port between {PORTS.start} and {PORTS.stop}.")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value).lower()
