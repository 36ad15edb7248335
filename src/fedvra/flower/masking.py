"""Masks that cancel in a sum: every two clients of a round share one, which the first adds and the second subtracts.

For clients i < j of a sum, with X25519 keys that each has pinned of the other:

    s_ij = X25519(own private key, the other's public key)
    k_ij = HKDF-SHA256(s_ij, salt = digest of the order, info = purpose, i, j)
    z_ij = ChaCha20(k_ij) as numbers modulo 2**B
    sent = q_i + sum_{j > i} z_ij - sum_{j < i} z_ji   (mod 2**B)

To whoever lacks both private keys z_ij is uniform, and so is what is sent; over all clients of the sum the masks cancel. The
digest is over everything that the server told all of them alike: the order's number, so that no mask is ever used twice; who is
in the sum and what each is to do; x0. The masks of clients that were told different things do not cancel, and the sum is noise.

Reference: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, without its
recovery of drop-outs: a client that is missing makes the round void.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvra.core.whole import Ring, Words
from fedvra.flower.protocol import Order

PERSONAL = frozenset({"client", "counted", "steps", "eta", "gamma", "alpha", "rate", "arrays", "shared"})
"""What differs from client to client in an order. Those that matter are in the table, which all are sent alike."""
STAMP = frozenset({"incarnation", "number"})
AT_ONCE = 1 << 20
"""Numbers that are masked at a time."""


@dataclass(frozen=True)
class Masks:
    """What one client hides its part of one sum under."""

    client: int
    private: X25519PrivateKey
    peers: Mapping[int, X25519PublicKey]
    """The others of the sum."""
    digest: bytes
    """Of what all of them were told."""

    def apply(self, ring: Ring, words: Words, purpose: str) -> Words:
        """These numbers, masked. ``purpose`` tells the vectors of one order apart."""
        masked = words.copy()
        for peer in sorted(self.peers):
            low, high = sorted((self.client, peer))
            stream = _stream(self._key(peer, f"{purpose}|{ring.bits}|{low}|{high}"))
            change = ring.add if self.client == low else ring.subtract
            for k in range(0, len(words), AT_ONCE):
                part = masked[k : k + AT_ONCE]
                mask = ring.words(stream.update(bytes(len(part) * ring.word_bytes)))
                masked[k : k + AT_ONCE] = change(part, mask)
        return masked

    def _key(self, peer: int, info: str) -> bytes:
        shared = self.private.exchange(self.peers[peer])
        return HKDF(SHA256(), 32, salt=self.digest, info=f"fedvra masked sum 1|{info}".encode()).derive(shared)


def _stream(key: bytes) -> CipherContext:
    """The key stream; every key is used for one, so that the nonce may be 0."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()


def common_digest(order: Order, stamped: bool = True) -> bytes:
    """SHA-256 of what an order tells all clients of a sum alike; unstamped, of what it has in common with a retry."""
    left_out = PERSONAL if stamped else PERSONAL | STAMP
    told = {f.name: getattr(order, f.name) for f in fields(order) if f.name not in left_out}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for name, tensor in sorted(order.arrays.items()):
        array = tensor.contiguous().numpy()
        digest.update(f"|{name}|{array.dtype.str}|{array.size}|".encode())
        digest.update(array.data)
    return digest.digest()
