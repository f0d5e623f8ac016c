"""TLS contexts from certificate files, for listeners and for connections to engines."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["engine_tls", "server_tls"]


def server_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A listener's context: its certificate with those of the intermediate CAs, and its key. With
    `client_ca` clients need a certificate of that CA (mutual TLS). Raises ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_own(context, certificate, key)
    if client_ca is not None:
        with _errors_of(client_ca):
            context.load_verify_locations(cafile=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def engine_tls(
    ca: Path | None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """The context for https engines: they need a certificate of `ca` (default: of the system's
    CAs); those that ask for one see the router's `certificate`. Raises ValueError."""
    with _errors_of(ca):
        context = ssl.create_default_context(cafile=ca)
    if certificate is not None and key is not None:
        _load_own(context, certificate, key)
    return context


@contextmanager
def _errors_of(ca: Path | None) -> Iterator[None]:
    """Raise ValueError if the certificates of a CA cannot be read."""
    try:
        yield
    except ssl.SSLError:
        raise ValueError(f"{ca} holds no PEM certificates") from None
    except OSError as error:
        raise ValueError(f"cannot read {ca}: {error.strerror}") from None


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # An encrypted key would have OpenSSL ask at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ValueError(_why(error, certificate, key)) from None
    except OSError as error:
        both = f"{certificate} and {key}"
        raise ValueError(f"cannot read {error.filename or both}: {error.strerror}") from None


def _why(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key} is not that of the certificate in {certificate}"
    return f"{certificate} and {key} must hold a PEM certificate and its PEM key, not encrypted"
