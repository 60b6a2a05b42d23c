import asyncio
import ssl

import pytest

from dwell.errors import InvalidSettings
from dwell.server import tls
from tests.server.certificates import make_certificate


def refused(cert, key=""):
    with pytest.raises(InvalidSettings) as caught:
        tls.context(cert, key)
    return str(caught.value)


async def greeting(made, trusted, **options):
    """Return what a server with a context says to a client that trusts a certificate."""

    async def greet(reader, writer):
        writer.write(b"hello\n")
        writer.close()

    client = ssl.create_default_context(cafile=trusted)
    for name, value in options.items():
        setattr(client, name, value)
    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=made) as server:
        address = server.sockets[0].getsockname()[:2]
        reader, writer = await asyncio.open_connection(*address, ssl=client)
        line = await reader.readline()
        writer.close()
    return line


async def test_a_pair_of_files(tmp_path):
    cert, key = make_certificate(tmp_path)
    assert await greeting(tls.context(cert, key), cert) == b"hello\n"


async def test_one_file_that_holds_both(tmp_path):
    cert, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.touch(0o600)
    both.write_text(cert.read_text() + key.read_text())
    assert await greeting(tls.context(str(both)), cert) == b"hello\n"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_are_not_spoken(tmp_path):
    cert, key = make_certificate(tmp_path)
    made = tls.context(cert, key)
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    old = {
        "minimum_version": ssl.TLSVersion.TLSv1_1,
        "maximum_version": ssl.TLSVersion.TLSv1_1,
    }
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await greeting(made, cert, **old)


def test_files_that_are_refused(tmp_path):
    cert, key = make_certificate(tmp_path)
    other = make_certificate(tmp_path, "other")
    none, empty = tmp_path / "none", tmp_path / "empty"
    empty.write_bytes(b"\xff\n")
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert refused(none, key) == f"tls_cert: {none}: No such file or directory"
    assert refused(cert, none) == f"tls_key: {none}: No such file or directory"
    assert refused(tmp_path, key) == f"tls_cert: {tmp_path}: Is a directory"
    assert refused(empty, key) == f"tls_cert: {empty} holds no certificate, expected a PEM file"
    assert refused(cert, empty) == f"tls_key: {empty} holds no private key, expected a PEM file"
    assert refused(cert) == f"tls_cert: {cert} holds no private key, expected a PEM file"
    assert refused(key, cert).startswith(f"tls_cert: {key} holds no certificate")
    assert refused(broken, key).startswith(f"tls_cert: {broken} with tls_key {key}: ")
    assert refused(cert, other[1]) == (
        f"tls_key: the key in {other[1]} is not that of the certificate in {cert}"
    )


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path):
    cert, key = make_certificate(tmp_path, "locked", "-passout", "pass:hush")
    assert refused(cert, key) == f"tls_key: the key in {key} has a password, expected one without"


@pytest.mark.parametrize("mode", [0o604, 0o644])
def test_a_key_that_everybody_may_read_is_refused(tmp_path, mode):
    cert, key = make_certificate(tmp_path)
    key.chmod(mode)
    assert refused(cert, key) == (
        f"tls_key: everybody may read the key in {key} (mode {mode:o}); expected chmod o-r"
    )
    key.chmod(0o640)
    assert tls.context(cert, key)


async def test_renewed_files_are_used_from_then_on(tmp_path):
    cert, key = make_certificate(tmp_path)
    made = tls.context(cert, key)
    old = tmp_path / "old.crt"
    old.write_bytes(cert.read_bytes())
    new_cert, new_key = make_certificate(tmp_path, "new")
    cert.write_bytes(new_cert.read_bytes())
    with pytest.raises(InvalidSettings, match="is not that of the certificate"):
        tls.renew(made, cert, key)
    assert await greeting(made, old) == b"hello\n"
    key.write_bytes(new_key.read_bytes())
    tls.renew(made, cert, key)
    assert await greeting(made, cert) == b"hello\n"
    with pytest.raises(ssl.SSLCertVerificationError):
        await greeting(made, old)
