"""The shared secret, and how two sides prove to each other that they know it without saying it.

Each proof covers both sides' random numbers and the certificate of the encrypted connection, so it is of no use on
another one: who stands in between has another certificate.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from penstock.errors import OptionError
from penstock.machine.private import private_file, private_folder

SHORTEST: Final = 16  # bytes: what is shorter could be guessed from a proof
NONCE: Final = 32
PROOF: Final = hashlib.sha256().digest_size


def default_path() -> Path:
    """Where this user's own secret is."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "penstock" / "cluster.secret"


def read_secret(path: Path | None) -> bytes:
    """The secret in a file; without one the user's own, which is made if there is none."""
    own = path is None
    path = default_path() if path is None else path
    if own and not path.exists():
        private_folder(path.parent)
        with private_file(path) as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        raise OptionError(f"secret: {path} cannot be read: {error.strerror}") from None
    if len(found) < SHORTEST:
        raise OptionError(
            f"secret: {path} has {len(found)} bytes, expected {SHORTEST} at least; `openssl rand -hex 32` makes one"
        )
    return found


def proof(secret: bytes, role: str, server_nonce: bytes, client_nonce: bytes, certificate: bytes) -> bytes:
    """What only who knows the secret can say, as this role, on this connection.  certificate: in DER form"""
    parts = (role.encode(), server_nonce, client_nonce, hashlib.sha256(certificate).digest())
    return hmac.digest(secret, b"penstock cluster\0" + b"\0".join(parts), "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)
