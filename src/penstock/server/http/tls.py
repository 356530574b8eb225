"""HTTPS: the certificate and its key, and connections until they are encrypted.

uvicorn could do this, but would count a connection only once its handshake is over: whoever opens many and says
nothing would have all descriptors for a minute.
"""

import asyncio
import ssl
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import OptionError
from penstock.server.http.connections import Connections
from penstock.server.http.limits import LimitedProtocol


class Certificate:
    """A server's certificate and key, in PEM files."""

    def __init__(self, cert: Path, key: Path):
        self.cert, self.key = cert, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.reload()

    def reload(self) -> None:
        """Reads the files again, for connections from now on.  OptionError if they are of no use."""
        _check_pem(self.cert, "--tls-cert", "CERTIFICATE", "a certificate")
        _check_pem(self.key, "--tls-key", "PRIVATE KEY", "a private key")
        if self.key.stat().st_mode & 0o007:
            warnings.warn(f"--tls-key {self.key}: everybody on this machine can read the key", stacklevel=2)
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # the one in use stays as it is if this fails
        for context in (trial, self.context):
            self._load_into(context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.cert, self.key, self._password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                text = f"--tls-key {self.key} is not the key of the certificate in --tls-cert {self.cert}"
            else:
                text = (
                    f"--tls-cert {self.cert}, --tls-key {self.key}: cannot be used: {error.reason or error}"
                )
            raise OptionError(text) from None

    def _password(self) -> str:
        raise OptionError(
            f"--tls-key {self.key} is encrypted, and nobody is here to type its password; "
            f"`openssl pkey -in {self.key} -out FILE` writes one that is not"
        )


def _check_pem(file: Path, flag: str, kind: str, what: str) -> None:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise OptionError(f"{flag} {file}: cannot be read: {error.strerror}") from None
    if f"{kind}-----".encode() not in text:
        raise OptionError(f"{flag} {file}: expected {what} in PEM form (-----BEGIN {kind}-----)")


def tls_protocol(certificate: Certificate) -> type[asyncio.Protocol]:
    """For uvicorn: the class of a connection that has yet to be encrypted."""

    class Handshake(asyncio.Protocol):
        """Hands its connection to the server's own protocol.  It counts as one from the start, and as idle."""

        idle = True
        address = ""

        def __init__(self, **made_with: Any):
            self._inner = LimitedProtocol(**made_with)
            self._all: Connections = self._inner.all_connections
            self._task: asyncio.Task[None] | None = None
            self._early = b""  # what comes with the last word of the handshake
            self._lost = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._transport = transport
            self.address = (transport.get_extra_info("peername") or ("",))[0]
            transport.pause_reading()
            if self._all.add(self):
                self._task = asyncio.ensure_future(self._encrypt())
            else:
                transport.abort()

        def end(self) -> None:
            self._transport.abort()

        def data_received(self, data: bytes) -> None:
            self._early += data

        def connection_lost(self, _: Exception | None) -> None:
            self._lost = True
            self._all.remove(self)

        async def _encrypt(self) -> None:
            encrypted = None
            with suppress(
                OSError, asyncio.CancelledError
            ):  # ssl's errors, time that is over, a client that has gone
                encrypted = await asyncio.get_running_loop().start_tls(
                    self._transport,
                    self,
                    certificate.context,
                    server_side=True,
                    ssl_handshake_timeout=self._inner.patience or None,
                )
            self._all.remove(self)
            if encrypted is None or self._lost:
                self._transport.abort()
                return
            encrypted.set_protocol(self._inner)
            self._inner.connection_made(encrypted)
            if self._early:
                self._inner.data_received(self._early)

    return Handshake
