"""The control connection: who knows the secret gets in, and a stranger learns nothing."""

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cluster.control import LARGEST, Control, NoHead, dial
from penstock.cluster.door import Doorkeeper
from penstock.cluster.message import Message
from penstock.cluster.secret import NONCE, PROOF, default_path, proof, read_secret
from penstock.errors import ClusterError, OptionError

SECRET = b"a secret of thirty-two characters"


class Door:
    """A doorkeeper on a port, and whom it let in."""

    def __init__(self) -> None:
        self._keeper = Doorkeeper(SECRET)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.met: list[Control | None] = []
        self.seen = threading.Semaphore(0)
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.met.append(self._keeper.admit(connection))
            self.seen.release()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def test_both_sides_know_the_secret(door: Door) -> None:
    worker = dial("127.0.0.1", door.port, SECRET)
    assert door.seen.acquire(timeout=30)
    (head,) = door.met
    assert head is not None
    worker.send(Message("hello", {"number": 7}))
    assert head.receive(30).fields == {"number": 7}
    head.send(Message("tick"))
    assert worker.receive(30).kind == "tick"


def test_another_secret_is_refused(door: Door) -> None:
    with pytest.raises(ClusterError, match="secret the same on both sides"):
        dial("127.0.0.1", door.port, SECRET + b"?")
    assert door.seen.acquire(timeout=30)
    assert door.met == [None]


def test_nobody_there_is_no_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoHead, match="no head there"):
        dial("127.0.0.1", port, SECRET)


@contextmanager
def stranger(port: int) -> Iterator[ssl.SSLSocket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        yield encrypted


def everything(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(4096):
            found += part
    except OSError:
        pass
    return found


def test_a_stranger_hears_a_random_number_and_nothing_else(door: Door) -> None:
    heard = []
    for _ in range(2):
        with stranger(door.port) as connection:
            certificate = connection.getpeercert(binary_form=True) or b""
            assert b"penstock" not in certificate.lower()
            connection.sendall(secrets.token_bytes(NONCE + PROOF))
            heard.append(everything(connection))
    assert [len(each) for each in heard] == [NONCE, NONCE]
    assert heard[0] != heard[1]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, secrets.token_bytes(5000)])
def test_garbage_is_no_greeting(door: Door, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), 30) as connection:
        connection.sendall(said)
        heard = everything(connection)
    assert door.seen.acquire(timeout=30)
    assert door.met == [None]
    assert len(heard) <= 7  # an alert of TLS at most
    dial("127.0.0.1", door.port, SECRET).close()  # others are still let in


def test_a_proof_is_good_on_one_connection_only() -> None:
    """Who stands in between has another certificate, and cannot pass a proof on."""
    server, client = secrets.token_bytes(NONCE), secrets.token_bytes(NONCE)
    here = proof(SECRET, "worker", server, client, b"one certificate")
    assert here != proof(SECRET, "worker", server, client, b"another")
    assert here != proof(SECRET, "head", server, client, b"one certificate")
    assert here != proof(SECRET, "worker", client, server, b"one certificate")


def test_a_false_head_is_found_out() -> None:
    """Somebody who does not know the secret, and says yes to everybody."""
    keeper = Doorkeeper(b"guessed, and guessed wrong")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def deceive() -> None:
            connection, _ = listener.accept()
            encrypted = keeper._context.wrap_socket(connection, server_side=True)
            encrypted.sendall(secrets.token_bytes(NONCE))
            encrypted.recv(NONCE + PROOF)
            encrypted.sendall(secrets.token_bytes(PROOF))

        threading.Thread(target=deceive, daemon=True).start()
        with pytest.raises(ClusterError, match="does not know the secret"):
            dial("127.0.0.1", listener.getsockname()[1], SECRET)


def test_a_message_that_is_too_long_is_not_waited_for(door: Door) -> None:
    worker = dial("127.0.0.1", door.port, SECRET)
    assert door.seen.acquire(timeout=30)
    (head,) = door.met
    assert head is not None
    worker._connection.sendall((LARGEST + 1).to_bytes(4, "little"))
    with pytest.raises(ClusterError, match="at most"):
        head.receive(30)


def test_a_descriptor_is_given_back_when_nobody_reads_from_it_any_more(door: Door) -> None:
    """TLS would read from whatever file has its number next."""
    worker = dial("127.0.0.1", door.port, SECRET)
    connection, inside, found = worker._connection, threading.Event(), list[bool]()
    recv, close = connection.recv, connection.close

    def slow(count: int) -> bytes:
        inside.set()
        try:
            return recv(count)
        finally:
            time.sleep(0.1)
            inside.clear()

    def noted() -> None:
        found.append(inside.is_set())
        close()

    connection.recv, connection.close = slow, noted  # type: ignore[method-assign, assignment]
    failures: list[ClusterError] = []

    def receive() -> None:
        try:
            worker.receive(30)
        except ClusterError as error:
            failures.append(error)

    reader = threading.Thread(target=receive)
    reader.start()
    assert inside.wait(30)
    worker.close()
    reader.join(30)
    assert found == [False]
    assert "the connection is gone" in str(failures[0])
    with pytest.raises(ClusterError, match="the connection is gone"):
        worker.send(Message("tick"))


def test_a_user_has_a_secret_of_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = read_secret(None)
    assert read_secret(None) == found
    assert default_path().stat().st_mode & 0o777 == 0o600


def test_a_secret_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("1234\n")
    with pytest.raises(OptionError, match="4 bytes, expected 16 at least"):
        read_secret(tmp_path / "short")
    with pytest.raises(OptionError, match=r"nowhere cannot be read"):
        read_secret(tmp_path / "nowhere")
