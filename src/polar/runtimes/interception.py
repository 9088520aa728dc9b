"""Interception: names of model providers that lead to the session's own listener, and why its programs trust it.

For a harness without a setting for its base URL, in a runtime with a network of its own. There the names resolve
to loopback, where the gateway serves TLS on port 443 with a certificate of the session's own authority. The
authority's certificate is in a bundle that the runtime mounts and variables name. Nothing outside the session
changes.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.base import Interception, Program

HTTPS_PORT = 443
LOOPBACK_NAMES = "127.0.0.1 localhost\n::1 localhost\n"
NO_LIBRARY = "interception needs the package cryptography: pip install 'polar-rollout[intercept]'"

TRUST = "trust"
"""Name of the folder with the files below, which the session sees as `/opt/polar/trust`."""
AUTHORITY_FILE, BUNDLE_FILE, HOSTS_FILE = "authority.pem", "bundle.pem", "hosts"
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # OpenSSL's own default
)
"""Where programs that read no variable look for authorities."""
BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Python, Go, Rust
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
ADDED_VARIABLES = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
"""Name authorities to trust beside the built-in ones."""
APPEND = 'for file in "$@"; do [ ! -f "$file" ] || cat "$0" >>"$file" || exit 1; done'
"""Adds the authority to the bundles of a root that the session may write to."""


class TrustFolder:
    """The files of one session's interception on the node, and the key that serves it."""

    def __init__(self, folder: Path, session_id: str, names: Sequence[str]) -> None:
        certificate, self.context = _certify()(session_id, names)
        self.names = tuple(names)
        self.folder = folder
        files = {
            AUTHORITY_FILE: certificate,
            BUNDLE_FILE: b"\n".join([*_system_bundle(), certificate]),
            HOSTS_FILE: hosts_text(names).encode(),
        }
        folder.chmod(0o755)  # a session may run as another user
        for name, content in files.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o644)

    @property
    def program(self) -> Program:
        """Runtimes mount it read-only, as they do a harness's programs."""
        return Program(TRUST, self.folder)

    @property
    def hosts(self) -> Path:
        return self.folder / HOSTS_FILE

    @property
    def bundle(self) -> Path:
        return self.folder / BUNDLE_FILE

    def served_at(self, listener: socket.socket) -> Interception:
        return Interception(self.names, listener, self.context, self.variables())

    def variables(self) -> dict[str, str]:
        inside = self.program.mount_point
        variables = {name: f"{inside}/{BUNDLE_FILE}" for name in BUNDLE_VARIABLES}
        return variables | {name: f"{inside}/{AUTHORITY_FILE}" for name in ADDED_VARIABLES}

    def appending(self) -> tuple[str, ...]:
        """A command that adds the authority to the bundles of an image."""
        return ("sh", "-c", APPEND, f"{self.program.mount_point}/{AUTHORITY_FILE}", *SYSTEM_BUNDLES)


def hosts_text(names: Iterable[str]) -> str:
    return LOOPBACK_NAMES + "".join(f"127.0.0.1 {name}\n" for name in names)


def check_library() -> None:
    """Raises if the package that signs certificates is missing."""
    _certify()


def _certify() -> Callable[[str, Sequence[str]], tuple[bytes, ssl.SSLContext]]:
    try:
        from polar.runtimes.session_authority import certify  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise RuntimeFailure(NO_LIBRARY) from error
    return certify


def node_bundles() -> list[str]:
    """The bundles of authorities that the node has, links resolved."""
    return sorted({str(Path(path).resolve()) for path in SYSTEM_BUNDLES if Path(path).is_file()})


def _system_bundle() -> list[bytes]:
    return [Path(path).read_bytes() for path in node_bundles()[:1]]
