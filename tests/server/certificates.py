"""Certificates for tests, made by the openssl command."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "server", *options: str) -> tuple[Path, Path]:
    """Return the files of a certificate for this machine that signs itself, and of its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    command = ["openssl", "req", "-x509", "-days", "2", *curve]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-out", str(cert), "-keyout", str(key), *(options or ("-noenc",))]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


def sign_certificate(folder: Path, name: str, ca: tuple[Path, Path]) -> tuple[Path, Path]:
    """Return the files of a certificate that another one has signed, and of its key."""
    signer = ("-CA", str(ca[0]), "-CAkey", str(ca[1]), "-noenc")
    return make_certificate(folder, name, *signer)
