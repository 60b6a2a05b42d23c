"""TLS: the certificate files of the two ports."""

import ssl
import stat
from pathlib import Path

from dwell.errors import InvalidSettings


def context(cert: str | Path, key: str | Path = "", client_ca: str | Path = "") -> ssl.SSLContext:
    """Return a server's context, for TLS 1.2 and later; raises InvalidSettings.

    ``cert`` is a PEM file of the certificate and its chain. Its key is in ``key``, or in the same
    file if that is empty. With ``client_ca``, a PEM file of certificates, only clients with a
    certificate signed by one of them are let in.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(made, cert, key)
    if client_ca:
        _ask_for_certificates(made, client_ca)
    return made


def renew(made: ssl.SSLContext, cert: str | Path, key: str | Path = "") -> None:
    """Use the current files for later connections; raises InvalidSettings.

    The signers of clients' certificates stay: a context cannot remove a trusted certificate.
    """
    # First on an unused context: a pair that does not fit must not be half applied.
    context(cert, key)
    _load(made, cert, key)


def _ask_for_certificates(made: ssl.SSLContext, client_ca: str | Path) -> None:
    _check_pem("tls_client_ca", client_ca, "CERTIFICATE")
    mode = stat.S_IMODE(Path(client_ca).stat().st_mode)
    if mode & stat.S_IWOTH:
        raise InvalidSettings(
            f"tls_client_ca: everybody may write {client_ca} (mode {mode:o}), and so let anybody "
            "in; expected chmod o-w"
        )
    try:
        made.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise InvalidSettings(f"tls_client_ca: {client_ca}: {error}") from None
    made.verify_mode = ssl.CERT_REQUIRED


def _load(made: ssl.SSLContext, cert: str | Path, key: str | Path) -> None:
    _check_pem("tls_cert", cert, "CERTIFICATE")
    owner, place = ("tls_key", key) if key else ("tls_cert", cert)
    text = _check_pem(owner, place, "PRIVATE KEY")
    mode = stat.S_IMODE(Path(place).stat().st_mode)
    if mode & stat.S_IROTH:
        raise InvalidSettings(
            f"{owner}: everybody may read the key in {place} (mode {mode:o}); expected chmod o-r"
        )
    if "ENCRYPTED" in text:
        raise InvalidSettings(f"{owner}: the key in {place} has a password, expected one without")
    try:
        made.load_cert_chain(cert, key or None)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidSettings(
                f"{owner}: the key in {place} is not that of the certificate in {cert}"
            ) from None
        raise InvalidSettings(f"tls_cert: {cert} with {owner} {place}: {error}") from None


def _check_pem(field: str, path: str | Path, what: str) -> str:
    """Return the text of a file that has to hold something; raises InvalidSettings."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise InvalidSettings(f"{field}: {path}: {error.strerror}") from None
    if f"{what}-----" not in text:
        raise InvalidSettings(f"{field}: {path} holds no {what.lower()}, expected a PEM file")
    return text
