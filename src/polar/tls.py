"""TLS: the server's certificate, which is read again when its files change, the handshake of each connection,
and what a client trusts.

A connection is not an HTTP connection before its handshake is done. So handshakes are bounded here: in time, and
in how many may be under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from pathlib import Path
from typing import Any, cast

LOGGER = logging.getLogger("polar.http")
CA_VARIABLE = "POLAR_CA_FILE"
HANDSHAKE_S = 30.0
"""Longer than a client of ours waits, so that it is the client that gives up and says why."""
MAX_HANDSHAKES = 256
"""Under way at once; beyond that, the oldest is broken off."""
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


class Handshakes:
    """The handshakes of one server."""

    def __init__(self, certificate: TlsCertificate) -> None:
        self.certificate = certificate
        self._under_way: dict[TlsConnection, None] = {}

    def begin(self, connection: TlsConnection) -> None:
        if len(self._under_way) >= MAX_HANDSHAKES:
            next(iter(self._under_way)).abort()
        self._under_way[connection] = None

    def end(self, connection: TlsConnection) -> None:
        self._under_way.pop(connection, None)

    def abort_all(self) -> None:
        for connection in list(self._under_way):
            connection.abort()

    def __len__(self) -> int:
        return len(self._under_way)


class TlsConnection(asyncio.Protocol):
    """Makes the handshake, then passes everything on to the protocol inside."""

    def __init__(self, inside: asyncio.Protocol, handshakes: Handshakes) -> None:
        self._inside = inside
        self._handshakes = handshakes
        self._plain: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_made = False
        self._early: list[bytes] = []
        """What the client sent together with the end of its handshake."""
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = self._plain = cast("asyncio.Transport", transport)
        plain.pause_reading()
        self._handshakes.begin(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(plain))

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        loop, context = asyncio.get_running_loop(), self._handshakes.certificate.context
        try:
            made = await loop.start_tls(plain, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S)
        except (OSError, RuntimeError):  # no TLS, no trust, or too slow: RuntimeError if it is closed already
            made = None
        finally:
            self._handshakes.end(self)
        if made is None or self._is_lost:
            plain.abort()
            return
        self._is_made = True
        self._inside.connection_made(made)
        for data in self._early:
            self._inside.data_received(data)

    def abort(self) -> None:
        """While the handshake is under way."""
        self._handshakes.end(self)
        if self._plain is not None:
            self._plain.abort()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_made:
            self._inside.data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool | None:
        return self._inside.eof_received() if self._is_made else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._handshakes.end(self)
        if self._is_made:
            self._inside.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._is_made:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        if self._is_made:
            self._inside.resume_writing()


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


def advice(error: BaseException, url: str) -> str:
    """What to do about a failed connection, if TLS is the reason; else empty."""
    cause: Any = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
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
