"""LEAF (Caldas et al., 2018): FEMNIST and Shakespeare as its scripts write them, one client per writer or role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.errors import UsageError, require
from fedvra.data.dataset import FederatedData, split
from fedvra.data.partitions import ByColumn

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet; whatever else occurs is one more symbol."""
FEMNIST_CLASSES = 62
SIDE = 28


def from_leaf(folder: str | Path, clients: int | None = None, seed: int = 0) -> FederatedData:
    """The files ``train/*.json`` and ``test/*.json`` below ``folder``, as LEAF's ``preprocess.sh`` leaves them in ``data/``.

    FEMNIST gives images [1, 28, 28] in [0, 1] of 62 classes, Shakespeare 80 characters and the next one, as numbers 0..80, for
    the model ``lstm`` (``fedvra.models.lstm``).

    Args:
        clients: None: one per writer or role, in sorted order; fewer: whole writers assigned to them at random.

    >>> import json, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> writers = {"a": {"x": [[0.0] * 784], "y": [3]}, "b": {"x": [[1.0] * 784], "y": [5]}}
    >>> for part in ("train", "test"):
    ...     (folder / part).mkdir()
    ...     _ = (folder / part / "all.json").write_text(json.dumps({"users": ["a", "b"], "user_data": writers}))
    >>> from_leaf(folder).clients
    2
    """
    root = Path(folder)
    train, test = _users(root / "train"), _users(root / "test")
    require(
        bool(train), f"there are no LEAF files in {root / 'train'}: run LEAF's preprocess.sh and name its folder data."
    )
    owners = [user for user in sorted(train) for _ in train[user]["y"]]
    inputs, targets = _arrays(train)
    text = inputs.dtype == np.int64
    return split(
        (inputs, targets),
        ByColumn(np.array(owners)),
        clients,
        seed,
        test=_arrays(test) if test else None,
        classes=len(LETTERS) + 1 if text else FEMNIST_CLASSES,
    )


def _users(folder: Path) -> dict[str, Any]:
    """A user's data by name; a user may be in several files."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))["user_data"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is no file of LEAF: it must hold users, num_samples and user_data.") from None
        for user, data in content.items():
            require(
                len(data["x"]) == len(data["y"]),
                f"{path}: user {user} has {len(data['x'])} inputs, {len(data['y'])} targets.",
            )
            if data["y"]:
                held = found.setdefault(user, {"x": [], "y": []})
                held["x"] += data["x"]
                held["y"] += data["y"]
    return found


def _arrays(users: dict[str, Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    x = [each for user in sorted(users) for each in users[user]["x"]]
    y = [each for user in sorted(users) for each in users[user]["y"]]
    if isinstance(x[0], str):
        places = {letter: k for k, letter in enumerate(LETTERS)}
        codes = [[places.get(letter, len(LETTERS)) for letter in line] for line in x]
        require(
            len({len(line) for line in codes}) == 1, "LEAF: lines of different lengths; they should have 80 characters."
        )
        return np.array(codes, dtype=np.int64), np.array([places.get(each, len(LETTERS)) for each in y], dtype=np.int64)
    images = np.array(x, dtype=np.float32)
    require(
        images.ndim == 2 and images.shape[1] == SIDE * SIDE,
        f"LEAF: expected images of {SIDE * SIDE} pixels or lines of text, got arrays of shape {list(images.shape[1:])}.",
    )
    return images.reshape(-1, 1, SIDE, SIDE), np.array(y, dtype=np.int64)
