"""Certificates and keys for a federation on one machine. For several machines see ``docs/federation.md``: use your own CA."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID


class Certificates(NamedTuple):
    """Paths of PEM files: the authority, and the server's own certificate and key."""

    ca: str
    certificate: str
    key: str


def write_certificates(folder: Path, days: int = 2) -> Certificates:
    """A certificate authority, and the SuperLink's certificate for localhost signed by it, good for a few days."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedvra local CA")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    ca = _certificate(issuer, issuer, ca_key, days)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    own = _certificate(subject, issuer, key, days)
    own = own.add_extension(x509.SubjectAlternativeName(here), critical=False)
    own = own.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    paths = Certificates(*(str(folder / name) for name in ("ca.crt", "server.crt", "server.key")))
    Path(paths.ca).write_bytes(ca.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    Path(paths.certificate).write_bytes(own.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    _write_private(Path(paths.key), key)
    return paths


def write_node_key(folder: Path, i: int) -> tuple[Path, Path]:
    """The key pair of SuperNode i (private, public), made where it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private, public = folder / f"node{i}", folder / f"node{i}.pub"
    if not private.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
        _write_private(private, key, serialization.PrivateFormat.OpenSSH)
    return private, public


def write_author_key(folder: Path) -> Path:
    """The key its author signs an app with, made where it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "author"
    if not path.exists():
        _write_private(path, ed25519.Ed25519PrivateKey.generate(), serialization.PrivateFormat.OpenSSH)
    return path


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
