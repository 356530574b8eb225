"""The control connection: encrypted, between two who both know the secret (`door.py` is the head's side of that)."""

import secrets
import socket
import ssl
import threading
from contextlib import suppress
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
        self._connection = connection
        self._sending, self._receiving = threading.Lock(), threading.Lock()
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
            with self._receiving:
                return self._receive(timeout)
        except TimeoutError:
            raise ClusterError(f"{self.there}: silent for {timeout:.0f} seconds") from None
        except OSError as error:
            raise ClusterError(f"{self.there}: the connection is gone: {error.strerror or error}") from None

    def _receive(self, timeout: float) -> Message:
        self._connection.settimeout(timeout)
        length = int.from_bytes(exactly(self._connection, 4), "little")
        if length > LARGEST:
            raise ClusterError(f"{self.there}: a message of {length:,} bytes, expected {LARGEST:,} at most")
        return Message.decode(np.frombuffer(exactly(self._connection, length), np.uint8))

    def close(self) -> None:
        """Whoever waits here hears that it is over, and then the descriptor is given back.  Not before: its number
        would be another file's while TLS still reads from it."""
        with suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # TLS stays: who reads gets its error
        with self._receiving, self._sending, suppress(OSError):
            self._connection.close()


def exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 16))
        if not part:
            raise ConnectionResetError(None, "closed by the other side")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


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
        theirs, own = exactly(encrypted, NONCE), secrets.token_bytes(NONCE)
        encrypted.sendall(own + proof(secret, WORKER, theirs, own, certificate))
        answer = exactly(encrypted, PROOF)
    except OSError as error:
        connection.close()
        why = "is it a head, and is --secret the same on both sides?"
        raise ClusterError(f"{where}: refused ({error.strerror or type(error).__name__}): {why}") from None
    if not is_proof(answer, proof(secret, HEAD, theirs, own, certificate)):
        encrypted.close()
        raise ClusterError(f"{where}: whoever answers there does not know the secret")
    return Control(encrypted)
