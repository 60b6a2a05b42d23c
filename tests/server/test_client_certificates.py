"""Clients that have to have a certificate: who has one comes in, and nobody else."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

import dwell
from dwell.errors import InvalidSettings
from dwell.server import tls
from dwell.server.settings import ServerSettings
from tests.server.certificates import make_certificate, sign_certificate
from tests.server.process import ServerProcess


@contextlib.contextmanager
def serving(folder, *args):
    """Serve both ports to those whose certificates ``ca`` has signed."""
    cert, key = make_certificate(folder)
    ca = make_certificate(folder, "ca")
    given = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca[0])
    ports = ("--beanstalk", "127.0.0.1:0", *args)
    with ServerProcess(*map(str, given), *ports, store=folder / "store") as server:
        yield server.ready(), str(cert), ca


async def put_and_take(url, **options):
    async with dwell.open(url, retries=0, **options) as queue:
        await queue.put("t", "x")
        (message,) = await queue.take("t", wait="5s")
        assert await queue.ack(message) is dwell.Result.ACKED


def greeted(port, trusted, own=None):
    """Return what the beanstalk port answers to a client with a certificate, or without one."""
    context = ssl.create_default_context(cafile=trusted)
    if own is not None:
        context.load_cert_chain(*own)
    host, _, number = port.rpartition(":")
    with (
        socket.create_connection((host, int(number)), 10) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as line,
    ):
        line.sendall(b"list-tube-used\r\n")
        return line.recv(100)


async def test_who_has_a_certificate_that_is_signed_comes_in(tmp_path):
    with serving(tmp_path) as (said, trusted, ca):
        cert, key = map(str, sign_certificate(tmp_path, "client", ca))
        url = f"https://{said['http']}"
        await put_and_take(url, ca=trusted, cert=cert, key=key)
        both = tmp_path / "both.pem"
        both.write_text(Path(cert).read_text() + Path(key).read_text())
        await put_and_take(url, ca=trusted, cert=str(both))
        assert greeted(said["beanstalk"], trusted, (cert, key)) == b"USING default\r\n"


async def test_nobody_else_gets_through_the_handshake(tmp_path):
    with serving(tmp_path) as (said, trusted, _):
        stranger = make_certificate(tmp_path, "stranger")
        cert, key = map(str, stranger)
        url = f"https://{said['http']}"
        for own in ({}, {"cert": cert, "key": key}):
            with pytest.raises(dwell.ServerUnreachable):
                await put_and_take(url, ca=trusted, **own)
        for own in (None, stranger):
            # Version 1.3 has a client learn it behind its own end of the handshake.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert greeted(said["beanstalk"], trusted, own) == b""


def test_files_that_are_refused(tmp_path):
    cert, key = make_certificate(tmp_path)
    none, open_to_all = tmp_path / "none", tmp_path / "open.crt"
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    open_to_all.write_text(cert.read_text())
    open_to_all.chmod(0o646)
    for path, told in (
        (none, f"tls_client_ca: {none}: No such file or directory"),
        (key, f"tls_client_ca: {key} holds no certificate, expected a PEM file"),
        (broken, f"tls_client_ca: {broken}: "),
        (open_to_all, f"tls_client_ca: everybody may write {open_to_all} (mode 646)"),
    ):
        with pytest.raises(InvalidSettings) as caught:
            tls.context(cert, key, path)
        assert str(caught.value).startswith(told)
    with pytest.raises(InvalidSettings, match="tls_client_ca: got it without tls_cert"):
        ServerSettings(tls_client_ca=str(cert))


async def test_what_a_client_cannot_present(tmp_path):
    cert, key = map(str, make_certificate(tmp_path))
    other = str(make_certificate(tmp_path, "other")[1])
    for own, told in (
        ({"cert": str(tmp_path / "none")}, "cert: .*No such file"),
        ({"cert": cert}, "cert: "),
        ({"cert": cert, "key": other}, "cert: .* with key .*"),
        ({"key": key}, "key: got a key without cert"),
    ):
        with pytest.raises(dwell.InvalidInput, match=told):
            await put_and_take("https://127.0.0.1:1", **own)
