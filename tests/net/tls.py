"""A certificate of our own, made anew for each run: one in the repository would expire."""

import ssl
import subprocess
from pathlib import Path

__all__ = ["CERTIFICATE", "KEY", "make_certificate", "server_context"]

CERTIFICATE = "certificate.pem"
KEY = "key.pem"


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key; returns the certificate's path."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / KEY), "-out", str(folder / CERTIFICATE)),
        ],
        check=True,
        capture_output=True,
    )
    return folder / CERTIFICATE


def server_context(certificate: Path) -> ssl.SSLContext:
    """What an engine with this certificate speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / KEY)
    return context
