"""The certificate authority of one session: signs one certificate, for the names that the session intercepts.

Its key signs that certificate and is dropped before `certify` returns, so nothing can be signed with it later, by
the session or by the node. Name constraints limit what it could ever have vouched for.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polar.runtimes.host.descriptors import closing_fd, memory_file

LIFETIME = timedelta(days=7)
"""Longer than any session."""
CLOCK_SKEW = timedelta(minutes=5)


class Certified(NamedTuple):
    certificate: bytes
    """Of the authority, in PEM: what the session's programs have to trust."""
    context: ssl.SSLContext
    """Serves the intercepted names, over HTTP/1.1 only. Holds the only key, which no file holds."""


def certify(session_id: str, names: Sequence[str]) -> Certified:
    authority_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _authority(session_id, names, authority_key)
    leaf = _leaf(names, own_key, authority, authority_key)
    key = own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    with closing_fd(memory_file(leaf.public_bytes(Encoding.PEM) + key)) as chain:
        context.load_cert_chain(f"/proc/self/fd/{chain}")
    return Certified(authority.public_bytes(Encoding.PEM), context)


def _authority(session_id: str, names: Sequence[str], key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # A common name has at most 64 characters.
    subject = _name(f"Polar session {session_id}"[:64])
    only = x509.NameConstraints(permitted_subtrees=[x509.DNSName(name) for name in names], excluded_subtrees=None)
    return (
        _valid_now(
            x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(only, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(_name("Polar gateway")).issuer_name(authority.subject)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _valid_now(builder.public_key(key.public_key()))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _valid_now(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + LIFETIME)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
