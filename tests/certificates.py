"""A certificate authority for tests, and certificates that it signs, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.file, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        new = (
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "30",
        )
        _openssl(*new, "-subj", f"/CN=test {name}", "-keyout", self._key, "-out", self.file)

    def sign(self, cert: Path, key: Path, *, expired: bool = False) -> str:
        """Writes a certificate for loopback; returns its serial number."""
        request, extensions = self.folder / "request.pem", self.folder / "extensions"
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(*new, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
        extensions.write_text(NAMES)
        signing = ("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial")
        days = "-1" if expired else "30"
        _openssl(*signing, "-days", days, "-extfile", extensions, "-out", cert)
        shown = subprocess.run(
            ["openssl", "x509", "-in", str(cert), "-noout", "-serial"], check=True, capture_output=True, text=True
        )
        return shown.stdout.strip().partition("=")[2]
