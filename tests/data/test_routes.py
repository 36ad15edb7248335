"""The ways to come by published files, and the formats they come in."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvra.core.errors import UsageError
from fedvra.data.sources import SOURCES, cifar10, get, routes
from fedvra.data.sources.files import File
from fedvra.data.sources.idx import read_idx
from fedvra.data.sources.routes import (
    Archive,
    DebianPackage,
    Folder,
    Mirror,
    NpmPackage,
    UnavailableError,
    download,
    gunzip,
    read_members,
)

CONTENT = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 50}
FILES = tuple(File(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items())


def tar(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_archives_are_read_by_exact_name_and_nothing_is_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = tar({"in/a": b"1", "../outside": b"2", "/absolute": b"3"}, links={"in/link": "/etc/hostname"})
    assert read_members(archive, ["in/a"]) == {"in/a": b"1"}
    with pytest.raises(UnavailableError, match="lacks in/link"):
        read_members(archive, ["in/link"])
    with pytest.raises(UnavailableError, match="lacks a"):
        read_members(archive, ["a"])
    for broken in (b"", b"no archive", archive[:50]):
        with pytest.raises(UnavailableError, match="not a readable archive"):
            read_members(broken, ["in/a"])
    assert list(tmp_path.iterdir()) == []


def test_decompression_stops_just_beyond_the_expected_size() -> None:
    assert gunzip(gzip.compress(b"abc"), 3) == b"abc"
    assert len(gunzip(gzip.compress(bytes(10_000_000)), 100)) == 101
    for broken in (b"no gzip", gzip.compress(bytes(1000))[:-12]):
        with pytest.raises(UnavailableError, match=r"not a readable \.gz"):
            gunzip(broken, 1000)


@pytest.fixture
def server() -> Iterator[str]:
    """A web server on this machine that has CONTENT, gzipped and as an archive, and nothing else."""
    offered = {f"/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    offered["/all.tar.gz"] = tar({f"in/{name}": content for name, content in CONTENT.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = offered.get(self.path)
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_downloading(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert Mirror(server).fetch(FILES) == CONTENT
    assert Archive(f"{server}/all.tar.gz", inside="in").fetch(FILES) == CONTENT
    with pytest.raises(UnavailableError, match="Not Found"):
        download(f"{server}/missing")
    monkeypatch.setattr(routes, "LARGEST", 10)
    with pytest.raises(UnavailableError, match="too large"):
        download(f"{server}/a.bin.gz")


def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        download("http://127.0.0.1:9/nobody-listens")


def test_every_address_is_https() -> None:
    addresses = [
        str(route) for _, source in SOURCES.items() for route in source.routes if isinstance(route, Mirror | Archive)
    ]
    assert len(addresses) >= 5
    assert all(address.startswith("https://") for address in addresses)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put small shell scripts in the place of package managers."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


def test_npm_packages(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    (tmp_path / "packed.tgz").write_bytes(tar({f"package/{name}": content for name, content in CONTENT.items()}))
    route = NpmPackage(
        "letters@1.0.0",
        tuple(f"package/{name}" for name in CONTENT),
        lambda members: {Path(name).name: content for name, content in members.items()},
    )
    programs("npm", f'test "$1 $2" = "pack letters@1.0.0" && cp {tmp_path}/packed.tgz letters-1.0.0.tgz')
    assert route.fetch(FILES) == CONTENT
    programs("npm", 'echo "npm error code ENOTFOUND" >&2; exit 1')
    with pytest.raises(UnavailableError, match="ENOTFOUND"):
        route.fetch(FILES)
    programs("npm", "exit 0")
    with pytest.raises(UnavailableError, match="no package"):
        route.fetch(FILES)


def test_debian_packages(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    members = {f"./usr/share/letters/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    (tmp_path / "contents.tar").write_bytes(tar(members))
    programs("apt-get", "touch letters.deb")
    programs("dpkg-deb", f"cat {tmp_path}/contents.tar")
    assert DebianPackage("letters", "usr/share/letters").fetch(FILES) == CONTENT


def test_a_missing_program_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="npm is not installed"):
        NpmPackage("letters@1.0.0", (), lambda members: members).fetch(FILES)


def test_a_folder_that_lacks_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT["a.bin"])
    with pytest.raises(UnavailableError, match="not there"):
        Folder(tmp_path).fetch(FILES)


# --- the formats


def test_idx_files_are_mapped_copy_on_write(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x08\x02" + struct.pack(">2I", 2, 3) + bytes(range(6)))
    array = read_idx(path)
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])
    array[0, 0] = 9
    assert read_idx(path)[0, 0] == 0
    path.write_bytes(b"<html>")
    with pytest.raises(UsageError, match="not an IDX file"):
        read_idx(path)


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def test_cifar_records_are_rebuilt_from_the_package_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "BATCH", 2)
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(12, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(10, size=12).tolist()
    rows = images.reshape(12, 3, 1024).transpose(0, 2, 1)
    members = {
        f"package/{name}.png": png(np.ascontiguousarray(rows[2 * number : 2 * number + 2]))
        for number, name in enumerate((*cifar10.TRAIN, cifar10.TEST))
    }
    members["package/train_lables.json"] = str(labels[:10]).encode()
    members["package/test_lables.json"] = str(labels[10:]).encode()
    for name, content in cifar10._from_package(members).items():
        assert len(content) == 2 * 3073
        (tmp_path / name).write_bytes(content)
    arrays = cifar10.read(tmp_path)
    np.testing.assert_array_equal(np.concatenate([arrays.inputs, arrays.test_inputs]), images)
    np.testing.assert_array_equal(np.concatenate([arrays.targets, arrays.test_targets]), labels)
    for spoil in (
        {"package/test_batch.png": b"no picture"},
        {"package/test_lables.json": b"[1]"},
        {"package/test_lables.json": b"{"},
    ):
        with pytest.raises(UnavailableError, match="not laid out as expected"):
            cifar10._from_package(members | spoil)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("sprung",))


def test_the_pickled_version_of_cifar_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(routes, "download", lambda url: (_ for _ in ()).throw(UnavailableError("no network")))
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*cifar10.TRAIN, cifar10.TEST):
        (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UsageError, match=r"put data_batch_1\.bin"):
        get("cifar10", tmp_path / "store")
    assert not (tmp_path / "sprung").exists()
