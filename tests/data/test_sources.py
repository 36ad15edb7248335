"""How named data sets are obtained, checked, stored and loaded, and that they are what they claim to be."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvra.core.errors import UsageError
from fedvra.core.files import replace_durably
from fedvra.data.sources import SOURCES, Arrays, Source, data_folder, digits, get, is_stored, load
from fedvra.data.sources.files import File
from fedvra.data.sources.routes import (
    Route,
    UnavailableError,
)

CONTENT = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 50}
FILES = tuple(File(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items())


class Given(Route):
    """A route that yields what it was given and counts how often it was asked."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents, self.asked = contents, 0

    def fetch(self, files: Sequence[File]) -> dict[str, bytes]:
        self.asked += 1
        if not self.contents:
            raise UnavailableError("no network")
        return self.contents


def read_letters(folder: Path) -> Arrays:
    letters = np.fromfile(folder / "a.bin", dtype=np.uint8)[:8].reshape(2, 1, 2, 2)
    return Arrays(letters, np.array([0, 1]), letters, np.array([1, 0]))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Source]:
    """Make a data set "letters" of two files with the given routes, in an empty working folder."""
    SOURCES.names()  # everything registered before the copy
    monkeypatch.setattr(SOURCES, "_items", dict(SOURCES._items))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def make(*ways: Route) -> Source:
        source = Source("letters", "two files", read_letters, ("x", "y"), FILES, ("Letters/raw",), ways)
        return SOURCES.add("letters", source)

    return make


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_get_stores_checked_files_and_load_reads_them(letters: Callable[..., Source], tmp_path: Path) -> None:
    route = Given(CONTENT)
    letters(route)
    assert not is_stored("letters", tmp_path)
    data = load("letters", tmp_path)
    assert stored(tmp_path / "letters") == CONTENT
    assert is_stored("letters", tmp_path)
    assert data.inputs.dtype == torch.uint8
    assert data.targets.tolist() == [0, 1]
    assert (data.classes, data.class_names) == (2, ("x", "y"))
    get("letters", tmp_path)
    load("letters", tmp_path)
    assert route.asked == 1


def test_the_first_route_with_the_published_content_wins(letters: Callable[..., Source], tmp_path: Path) -> None:
    wrong, short = CONTENT | {"b.bin": b"BETA" * 50}, {"a.bin": CONTENT["a.bin"]}
    ways = [Given({}), Given(wrong), Given(short), Given(CONTENT), Given(CONTENT)]
    letters(*ways)
    lines: list[str] = []
    get("letters", tmp_path, report=lines.append)
    assert [way.asked for way in ways] == [1, 1, 1, 1, 0]
    assert sum("SHA-256 differs" in line for line in lines) == 2
    assert stored(tmp_path / "letters") == CONTENT


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["letters", "Letters/raw", "work/data/Letters/raw"])
def test_files_that_are_already_there_are_found(
    letters: Callable[..., Source], tmp_path: Path, place: str, packed: bool
) -> None:
    letters(network := Given(CONTENT))
    (tmp_path / place).mkdir(parents=True)
    for name, content in CONTENT.items():
        if packed:
            (tmp_path / place / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / place / name).write_bytes(content)
    get("letters", tmp_path)
    assert network.asked == 0
    assert all(file.intact_in(tmp_path / "letters") for file in FILES)


def test_damage_is_noticed_by_get_and_repaired(letters: Callable[..., Source], tmp_path: Path) -> None:
    letters(Given(CONTENT))
    home = get("letters", tmp_path)
    (home / "a.bin").write_bytes(b"x" * len(CONTENT["a.bin"]))
    get("letters", tmp_path)
    assert stored(home) == CONTENT
    (home / "b.bin").write_bytes(b"cut short")
    assert load("letters", tmp_path).classes == 2
    assert stored(home) == CONTENT


def test_offline_and_absent_is_one_sentence_that_says_what_to_bring(
    letters: Callable[..., Source], tmp_path: Path
) -> None:
    letters(Given({}))
    for attempt in (
        lambda: get("letters", tmp_path),
        lambda: load("letters", tmp_path),
        lambda: load("letters", tmp_path, fetch=False),
    ):
        with pytest.raises(UsageError) as caught:
            attempt()
        message = str(caught.value)
        assert f"put a.bin, b.bin (plain or .gz) into {tmp_path / 'letters'}" in message
        assert message.count(". ") == 0
        assert "\n" not in message
    assert stored(tmp_path / "letters") == {}


def test_a_folder_that_cannot_be_written_is_found_out_before_fetching(
    letters: Callable[..., Source], tmp_path: Path
) -> None:
    letters(route := Given(CONTENT))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set FEDVRA_DATA"):
        get("letters", tmp_path / "file")
    assert route.asked == 0


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDVRA_DATA", raising=False)
    assert data_folder() == tmp_path / ".cache" / "fedvra"
    monkeypatch.setenv("FEDVRA_DATA", "~/here")
    assert data_folder() == tmp_path / "here"
    assert data_folder("there") == Path("there")


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'fashion-mnist'"):
        get("fashion_mnist")
    assert {"digits", "mnist", "fashion-mnist", "cifar10"} <= set(SOURCES.names())


def test_a_failed_write_leaves_the_old_file_and_no_litter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    replace_durably(path, b"old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            replace_durably(path, b"new")
    assert stored(tmp_path) == {"a.bin": b"old"}


# --- the data themselves


def test_digits_are_split_by_class_and_the_same_everywhere() -> None:
    data = load("digits")
    assert data.inputs.shape[1:] == (1, 8, 8)
    assert data.inputs.dtype == torch.uint8
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert (len(data), len(data.test_targets)) == (1438, 359)
    share = data.test_targets.bincount() / (data.targets.bincount() + data.test_targets.bincount())
    assert (share - 0.2).abs().max() < 0.005
    digest = hashlib.sha256(data.inputs.numpy().tobytes() + data.test_targets.numpy().tobytes()).hexdigest()
    assert digest == "ba0d9cebc2cd10c619a9762fc71f961701f6d68c14d0a50763d5fd9090417b9b"
    everything = data.transform(torch.cat([data.inputs, data.test_inputs]))
    assert everything.mean().abs() < 1e-4
    assert (everything.std() - 1).abs() < 1e-3


def test_digits_read_from_the_wheel_are_those_of_the_library() -> None:
    np.testing.assert_array_equal(digits._table(), digits._table_through_the_library())


@pytest.mark.parametrize(
    ("name", "shape", "per_class"),
    [
        ("mnist", (60_000, 1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fashion-mnist", (60_000, 1, 28, 28), [6000] * 10),
        ("cifar10", (50_000, 3, 32, 32), [5000] * 10),
    ],
)
def test_stored_data_are_the_published_ones(name: str, shape: tuple[int, ...], per_class: list[int]) -> None:
    if not is_stored(name):
        pytest.skip(f"{name} is not in {data_folder()}; `fedvra data get {name}` brings it there")
    assert all(file.intact_in(data_folder() / name) for file in SOURCES.get(name).files)
    data = load(name)
    assert tuple(data.inputs.shape) == shape
    assert data.inputs.dtype == torch.uint8
    assert data.targets.bincount().tolist() == per_class
    assert data.test_targets is not None
    assert len(data.test_targets) == 10_000
    # Normalisation does what its constants claim, to the accuracy that a seventh of the images allows.
    normalised = data.transform(data.inputs[::7])
    assert normalised.mean(dim=(0, 2, 3)).abs().max() < 0.02
    assert (normalised.std(dim=(0, 2, 3)) - 1).abs().max() < 0.02


def test_naming_data_and_partitions_does_not_import_torch() -> None:
    program = (
        "import sys; from fedvra.data.sources import SOURCES; from fedvra.data.partitions import parse_partition; "
        "SOURCES.names(); parse_partition('dirichlet:0.2'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
