"""Apps signed by their author, so that a SuperNode runs no others.

A SuperNode started with ``--trusted-entities trusted.yaml`` runs an app only if one of the keys in that file signed it: Ed25519
over the time of signing and the SHA-256 of the app as Flower bundles it. Changing one byte of the app makes it another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from fedvra.core.errors import UsageError, require


class Signed(NamedTuple):
    """What signing an app left behind."""

    sha256: str
    signature: Path
    """For the gate."""
    trusted: Path
    """For the SuperNodes: the author's public key."""


def sign_app(app: Path, key_file: Path, folder: Path) -> Signed:
    """Sign an app with an Ed25519 key, as ``ssh-keygen -t ed25519`` makes it; the signature is put into ``folder``."""
    require((app / "pyproject.toml").is_file(), f"{app} is not a Flower app: there is no pyproject.toml.")
    key = _read_private(key_file)
    try:
        with warnings.catch_warnings(
            action="ignore", category=DeprecationWarning
        ):  # of Flower's, about a library of its own
            content = build_fab_from_disk(app)
    except ValueError as error:
        raise UsageError(f"{app} cannot be bundled: {' '.join(str(error).split())}") from None
    trusted = write_trusted(key_file, folder)
    digest, now = hashlib.sha256(content), int(time.time())
    signature = key.sign(create_message_to_sign(digest.digest(), now))
    path = folder / f"{digest.hexdigest()}.json"
    made: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    made[_name(_public(key))] = {"signature": base64.urlsafe_b64encode(signature).decode("ascii"), "signed_at": now}
    path.write_text(json.dumps(made, indent=1))
    return Signed(digest.hexdigest(), path, trusted)


def write_trusted(key_file: Path, folder: Path) -> Path:
    """Add the public half of an author's key to ``folder``'s trusted.yaml, which SuperNodes are started with."""
    public = _public(_read_private(key_file))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trusted.yaml"
    known = path.read_text() if path.exists() else ""
    if public not in known:
        path.write_text(f'{known}{_name(public)}: "{public}"\n')
    return path


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def _name(public: str) -> str:
    """How signatures say whose they are."""
    return f"fpk_{hashlib.sha256(public.encode()).hexdigest()[:16]}"


def _read_private(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f'{path} is not an Ed25519 key without a passphrase: make one with ssh-keygen -t ed25519 -N "".'
        )
    return key
