"""HTTPS: certificates that fit, those that do not, and connections that never say anything."""

import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.clients.target import find
from penstock.errors import OptionError
from penstock.server.http.server import Server, address, listen
from penstock.server.http.settings import Settings
from penstock.server.http.tls import Certificate
from penstock.server.service import Service

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


class Pair(NamedTuple):
    cert: Path
    key: Path


def made(folder: Path, name: str) -> Pair:
    """A certificate of this machine that is its own authority."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(pair.key), "-out", str(pair.cert)]
    subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    pair.key.chmod(0o600)
    return pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return made(folder, "one")


@contextmanager
def serving(service: Service, pair: Pair, **settings: object) -> Iterator[str]:
    """The engine is everybody's, so the application does not start or end it."""
    other = Service(service.engine, Settings(**settings), service.scheduler)  # type: ignore[arg-type]
    server = Server(other, 0.0, certificate=Certificate(*pair))
    server.config.lifespan = "off"
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=lambda: super(Server, server).run(sockets=[listener]))
        stopped, service.scheduler.stop = service.scheduler.stop, lambda *_: None  # type: ignore[method-assign]
        thread.start()
        try:
            yield address(listener, "https")
        finally:
            server.should_exit = True
            thread.join(60)
            service.scheduler.stop = stopped  # type: ignore[method-assign]


@pytest.mark.usefixtures("client")  # the scheduler runs
def test_it_answers_to_whoever_trusts_the_certificate(service: Service, pair: Pair) -> None:
    trusting = ssl.create_default_context(cafile=str(pair.cert))
    with serving(service, pair) as url, httpx.Client(base_url=url, verify=trusting, timeout=120) as client:
        assert client.get("/health").json() == {"status": "ok"}
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
        assert client.post("/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/health")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url.replace("https", "http"))


@pytest.mark.usefixtures("client")
def test_pages_of_the_server_itself_are_its_own(service: Service, pair: Pair) -> None:
    trusting = ssl.create_default_context(cafile=str(pair.cert))
    with serving(service, pair) as url, httpx.Client(base_url=url, verify=trusting, timeout=120) as client:
        for origin, status in ((url, 200), ("https://evil.example", 403)):
            headers = {"origin": origin}
            assert client.post("/tokenize", json={"content": "a"}, headers=headers).status_code == status
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.usefixtures("client")
def test_who_never_says_hello_keeps_nobody_out(service: Service, pair: Pair) -> None:
    trusting = ssl.create_default_context(cafile=str(pair.cert))
    with serving(service, pair, max_connections=8) as url, ExitStack() as silent:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(40):
            silent.enter_context(socket.create_connection(place, timeout=60))
        assert httpx.get(f"{url}/health", verify=trusting, timeout=60).status_code == 200


@pytest.mark.usefixtures("client")
def test_silence_ends(service: Service, pair: Pair) -> None:
    with serving(service, pair, body_timeout=0.2) as url:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(place, timeout=60) as silent, suppress(ConnectionResetError):
            assert silent.recv(1) == b""


def test_a_renewed_certificate_is_used(pair: Pair, folder: Path, tmp_path: Path) -> None:
    used = Pair(tmp_path / "crt", tmp_path / "key")
    for source, target in zip(pair, used, strict=True):
        shutil.copy(source, target)
    certificate = Certificate(*used)
    renewed = made(folder, "renewed")
    for source, target in zip(renewed, used, strict=True):
        shutil.copy(source, target)
    certificate.reload()
    shutil.copy(pair.key, used.key)
    with pytest.raises(OptionError, match="is not the key of"):
        certificate.reload()


def test_the_command_says_https_and_its_clients_find_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--threads", "1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("penstock: listening on ").strip()
        assert url.startswith("https://127.0.0.1:")
        with pytest.raises(OptionError, match="certificate is not trusted here"):
            find(url)
        process.send_signal(signal.SIGHUP)
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.cert))
        assert find(url).openai == f"{url}/v1"
        assert find(url).reached
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


# ── files that are of no use ──────────────────────────────────────────────────────────────────────────────


def test_what_is_wrong_with_files_is_said(pair: Pair, folder: Path) -> None:
    other, missing, text = made(folder, "two"), folder / "missing", folder / "text"
    text.write_text("hello")
    broken = folder / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    locked = folder / "locked"
    lock = [
        "openssl",
        "pkey",
        "-in",
        str(pair.key),
        "-aes256",
        "-passout",
        "pass:secret",
        "-out",
        str(locked),
    ]
    subprocess.run(lock, check=True, capture_output=True)
    locked.chmod(0o600)
    for cert, key, told in (
        (missing, pair.key, f"--tls-cert {missing}: cannot be read: No such file"),
        (pair.cert, missing, f"--tls-key {missing}: cannot be read: No such file"),
        (folder, pair.key, f"--tls-cert {folder}: cannot be read: Is a directory"),
        (text, pair.key, f"--tls-cert {text}: expected a certificate in PEM form"),
        (pair.cert, pair.cert, f"--tls-key {pair.cert}: expected a private key in PEM form"),
        (broken, pair.key, f"--tls-cert {broken}, --tls-key {pair.key}: cannot be used"),
        (pair.cert, other.key, f"--tls-key {other.key} is not the key of the certificate"),
        (pair.cert, locked, f"--tls-key {locked} is encrypted"),
    ):
        with pytest.raises(OptionError) as caught:
            Certificate(cert, key)
        assert str(caught.value).startswith(told)


def test_a_key_that_everybody_reads_is_warned_of(pair: Pair, tmp_path: Path) -> None:
    key = tmp_path / "key"
    shutil.copy(pair.key, key)
    key.chmod(0o644)
    with pytest.warns(UserWarning, match="everybody on this machine can read"):
        Certificate(pair.cert, key)


def test_one_needs_the_other(pair: Pair) -> None:
    for flags in (["--tls-cert", str(pair.cert)], ["--tls-key", str(pair.key)]):
        result = CliRunner().invoke(app, ["serve", *flags])
        assert "--tls-cert and --tls-key: one needs the other" in str(result.exception)
