"""The control connection: encrypted, and open only to who knows the secret.

The head makes a certificate of its own each time it starts.  Nobody trusts it by itself: both sides prove that they
know the secret, and their proofs cover the certificate (`secret.py`).  The worker proves first, so a stranger who
connects hears a random number, and nothing else: no version, no name, no error.
"""

import datetime
import secrets
import socket
import ssl
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from penstock.cluster.message import Message
from penstock.cluster.secret import NONCE, PROOF, is_proof, proof
from penstock.errors import ClusterError

PATIENCE: Final = 10.0  # seconds for a stranger to prove that he is none
LARGEST: Final = 1 << 20  # bytes of a message
HEAD, WORKER = "head", "worker"


class NoHead(ClusterError):
    """Nobody listens there; perhaps later."""


class Control:
    """One connection, once both sides know each other.  `send` may be called from any thread, `receive` by one."""

    def __init__(self, connection: ssl.SSLSocket):
        self._connection, self._sending = connection, threading.Lock()
        self.here: str = connection.getsockname()[0]  # by which address each side reaches the other
        self.there: str = connection.getpeername()[0]

    def send(self, message: Message) -> None:
        data = message.encode().tobytes()
        try:
            with self._sending:
                self._connection.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise ClusterError(f"{self.there}: the connection is gone: {error.strerror or error}") from None

    def receive(self, timeout: float) -> Message:
        """Raises ClusterError if nothing comes for so many seconds, or nothing that can be read."""
        try:
            self._connection.settimeout(timeout)
            length = int.from_bytes(_exactly(self._connection, 4), "little")
            if length > LARGEST:
                raise ClusterError(
                    f"{self.there}: a message of {length:,} bytes, expected {LARGEST:,} at most"
                )
            return Message.decode(np.frombuffer(_exactly(self._connection, length), np.uint8))
        except TimeoutError:
            raise ClusterError(f"{self.there}: silent for {timeout:.0f} seconds") from None
        except OSError as error:
            raise ClusterError(f"{self.there}: the connection is gone: {error.strerror or error}") from None

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._connection.close()


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 16))
        if not part:
            raise ConnectionResetError(None, "closed by the other side")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Doorkeeper:
    """The head's side: lets in who knows the secret."""

    def __init__(self, secret: bytes):
        self._secret = secret
        self._context, self._certificate = _own_certificate()

    def admit(self, connection: socket.socket) -> Control | None:
        """None for a stranger, who hears nothing of why."""
        try:
            connection.settimeout(PATIENCE)
            encrypted = self._context.wrap_socket(connection, server_side=True)
            own = secrets.token_bytes(NONCE)
            encrypted.sendall(own)
            theirs, given = _exactly(encrypted, NONCE), _exactly(encrypted, PROOF)
            if not is_proof(given, proof(self._secret, WORKER, own, theirs, self._certificate)):
                raise ConnectionAbortedError
            encrypted.sendall(proof(self._secret, HEAD, own, theirs, self._certificate))
            return Control(encrypted)
        except OSError:  # also whatever ssl complains about
            with suppress(OSError):
                connection.close()
            return None


def dial(host: str, port: int, secret: bytes) -> Control:
    """The worker's side."""
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), PATIENCE)
    except OSError as error:
        raise NoHead(f"{where}: no head there: {error.strerror or error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # what the head proves is that it knows the secret
    context.verify_mode = ssl.CERT_NONE
    try:
        encrypted = context.wrap_socket(connection)
        certificate = encrypted.getpeercert(binary_form=True) or b""
        theirs, own = _exactly(encrypted, NONCE), secrets.token_bytes(NONCE)
        encrypted.sendall(own + proof(secret, WORKER, theirs, own, certificate))
        answer = _exactly(encrypted, PROOF)
    except OSError as error:
        connection.close()
        why = "is it a head, and is --secret the same on both sides?"
        raise ClusterError(f"{where}: refused ({error.strerror or type(error).__name__}): {why}") from None
    if not is_proof(answer, proof(secret, HEAD, theirs, own, certificate)):
        encrypted.close()
        raise ClusterError(f"{where}: whoever answers there does not know the secret")
    return Control(encrypted)


def _own_certificate() -> tuple[ssl.SSLContext, bytes]:
    """A new key with its certificate, which says nothing; and the certificate in DER form."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    with tempfile.TemporaryDirectory() as folder:  # this user's alone; ssl reads from files only
        path = Path(folder, "key.pem")
        path.touch(0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(path)
    return context, certificate.public_bytes(serialization.Encoding.DER)
