"""The head's door: where workers knock, and who is let in.

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
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.cluster.control import HEAD, PATIENCE, WORKER, Control, exactly
from penstock.cluster.secret import NONCE, PROOF, is_proof, proof
from penstock.errors import OptionError

STRANGERS: Final = 32  # connections at a time that have not proved anything yet


class Doorkeeper:
    """Lets in who knows the secret."""

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
            theirs, given = exactly(encrypted, NONCE), exactly(encrypted, PROOF)
            if not is_proof(given, proof(self._secret, WORKER, own, theirs, self._certificate)):
                raise ConnectionAbortedError
            encrypted.sendall(proof(self._secret, HEAD, own, theirs, self._certificate))
            return Control(encrypted)
        except OSError:  # also whatever ssl complains about
            with suppress(OSError):
                connection.close()
            return None


class Door:
    """Listens from the beginning.  `welcome` is called, on a thread of its own, with everybody who is let in."""

    def __init__(self, address: str, secret: bytes, welcome: Callable[[Control], None]):
        self._keeper, self._welcome = Doorkeeper(secret), welcome
        self._listener = _listen(*parse_address(address, "cluster"))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._strangers = threading.Semaphore(STRANGERS)
        self._closed = False
        threading.Thread(target=self._accept, name="penstock-cluster-door", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.1)  # no descriptors left, perhaps, or closed
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._meet, args=(connection,), name="penstock-worker", daemon=True
            ).start()

    def _meet(self, connection: socket.socket) -> None:
        try:
            control = self._keeper.admit(connection)
        finally:
            self._strangers.release()
        if control is not None:
            self._welcome(control)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def parse_address(text: str, name: str) -> tuple[str, int]:
    """ "host:port", "[::1]:port" """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise OptionError(f"{name} is {text!r}, expected HOST:PORT, such as 192.168.1.10:7600")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise OptionError(f"cluster: cannot listen on {host}:{port}: {error.strerror or error}") from None


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
