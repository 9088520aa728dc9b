"""TLS: the server's certificate, which is read again when its files change, and what a client trusts."""

from __future__ import annotations

import logging
import os
import ssl
import time
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("polar.http")
CA_VARIABLE = "POLAR_CA_FILE"
LOOK_S = 1.0
"""How often the files of the certificate are looked at, at most."""


class CertificateUnusable(ValueError):
    """The message names the file."""


class TlsCertificate:
    """The certificate and key of a server."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = (cert, key)
        self._seen = self._stamps()
        """Of the files that are in use."""
        self._complained: tuple[object, ...] = ()
        """Of those that could not be used last."""
        self._context = self._load()
        self._looked = time.monotonic()

    @property
    def context(self) -> ssl.SSLContext:
        """Of the files as they are now; of those before while new ones cannot be read, as in the middle of a
        renewal."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._look()
        return self._context

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        try:
            self._context = self._load()
        except CertificateUnusable as error:
            # Tried again at the next look: a key that becomes readable keeps its times.
            if stamps != self._complained:
                LOGGER.warning("the old certificate stays in use: %s", error)
            self._complained = stamps
        else:
            self._seen = stamps
            LOGGER.info("the new certificate in %s is in use", self._files[0])

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        cert, key = self._files
        try:
            context.load_cert_chain(cert, key, password=lambda: "")  # without it OpenSSL would ask the terminal
        except FileNotFoundError as error:
            missing = cert if not cert.exists() else key
            raise CertificateUnusable(f"no certificate or key at {missing}") from error
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "reason", None) or error.strerror or str(error)
            raise CertificateUnusable(
                f"cannot use the certificate {cert} with the key {key}: {why}; both must be PEM files that belong "
                "together, and the key must have no password"
            ) from error
        return context

    def _stamps(self) -> tuple[object, ...]:
        def stamp(path: Path) -> object:
            try:
                found = path.stat()
            except OSError:
                return None
            return found.st_mtime_ns, found.st_ino, found.st_size

        return tuple(map(stamp, self._files))


def client_context(ca_file: str | os.PathLike[str] | None = None) -> ssl.SSLContext:
    """Trusts the CAs of the file, else of the file that POLAR_CA_FILE names, else those of the system."""
    chosen = ca_file or os.environ.get(CA_VARIABLE) or None
    try:
        context = ssl.create_default_context(cafile=chosen)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise CertificateUnusable(f"cannot use the CA file {chosen}: {why}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def cause_of(error: BaseException) -> Any:
    """The error of the system or of TLS inside one of aiohttp's."""
    return getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error


def advice(error: BaseException, url: str) -> str:
    """What to do about a failed connection, if TLS is the reason; else empty."""
    cause = cause_of(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        if "expired" in cause.verify_message:
            return "its certificate has expired: renew it at the server"
        return (
            f"its certificate is not trusted ({cause.verify_message}): set {CA_VARIABLE} to the file of the CA "
            "that signed it (a command takes --ca FILE too), and use a name that stands in it"
        )
    if isinstance(cause, ssl.SSLError) and url.startswith("https://"):
        return "it does not speak TLS there: does it have server.tls_cert? Otherwise write http://"
    broken_off = isinstance(cause, ConnectionResetError) or "Disconnected" in type(error).__name__
    if broken_off and url.startswith("http://"):
        return "it broke the connection off: if it uses TLS, write https://"
    return ""
