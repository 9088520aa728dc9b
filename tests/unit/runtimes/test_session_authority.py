"""A session's authority: what its certificate vouches for, and what it cannot."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from polar.runtimes import session_authority
from polar.runtimes.session_authority import Certified, certify

NAMES = ("api.example.com", "llm.example.org")


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """A handshake in memory."""
    ends = [(ssl.MemoryBIO(), ssl.MemoryBIO())] * 2
    to_server, to_client = ends[0]
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours


def trusting(certified: Certified) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=certified.certificate.decode())


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension[x509.ExtensionType]:
    return certificate.extensions.get_extension_for_class(kind)


@pytest.mark.parametrize("name", NAMES)
def test_it_vouches_for_each_of_its_names(name: str) -> None:
    certified = certify("s-1", NAMES)
    seen = shaken(certified.context, trusting(certified), name).getpeercert()
    assert seen is not None
    assert seen["subjectAltName"] == tuple(("DNS", each) for each in NAMES)
    assert (("commonName", "Polar session s-1"),) in seen["issuer"]


@pytest.mark.parametrize("name", ["example.com", "other.example.com", "sub.api.example.com", "pypi.org"])
def test_it_vouches_for_no_other_name(name: str) -> None:
    certified = certify("s-1", NAMES)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(certified.context, trusting(certified), name)


def test_it_is_strange_to_every_other_session() -> None:
    one, other = certify("s-1", NAMES), certify("s-1", NAMES)
    for client in (trusting(other), ssl.create_default_context()):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
            shaken(one.context, client, NAMES[0])


def test_its_certificate_is_short_lived_and_limited_to_the_names() -> None:
    certificate = x509.load_pem_x509_certificate(certify("s" * 128, NAMES).certificate)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(days=8)
    basic = extension(certificate, x509.BasicConstraints)
    assert basic.critical and basic.value == x509.BasicConstraints(ca=True, path_length=0)
    names = extension(certificate, x509.NameConstraints)
    assert names.critical and isinstance(names.value, x509.NameConstraints)
    assert names.value.permitted_subtrees == [x509.DNSName(name) for name in NAMES]
    (subject,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert len(subject.value) == 64, "a longer one is no valid certificate"


def test_with_its_key_another_name_could_not_be_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is gone after `certify`. Even if it were not, the name constraints would hold."""
    made: list[ec.EllipticCurvePrivateKey] = []
    generate = ec.generate_private_key

    def kept(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
        made.append(generate(curve))
        return made[-1]

    monkeypatch.setattr(session_authority.ec, "generate_private_key", kept)
    authority = x509.load_pem_x509_certificate(certify("s-1", NAMES).certificate)
    for name, is_accepted in {NAMES[0]: True, "pypi.org": False}.items():
        leaf = _signed(name, authority, made[0])
        verifier = PolicyBuilder().store(Store([authority])).build_server_verifier(x509.DNSName(name))
        if is_accepted:
            verifier.verify(leaf, [])
        else:
            with pytest.raises(VerificationError):
                verifier.verify(leaf, [])


def _signed(name: str, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    own = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return (
        x509.CertificateBuilder(
            issuer_name=authority.subject,
            subject_name=x509.Name([]),
            public_key=own.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=authority.not_valid_before_utc,
            not_valid_after=authority.not_valid_after_utc,
        )
        .add_extension(names, critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def test_only_http_1_and_modern_tls() -> None:
    certified = certify("s-1", NAMES)
    client = trusting(certified)
    client.set_alpn_protocols(["h2", "http/1.1"])
    assert shaken(certified.context, client, NAMES[0]).selected_alpn_protocol() == "http/1.1"
    assert certified.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_no_descriptor_stays_open() -> None:
    def opened() -> int:
        with socket.socket() as newest:
            return newest.fileno()

    before = opened()
    certify("s-1", NAMES)
    assert opened() == before


async def test_many_are_made_without_a_wait_for_the_loop() -> None:
    """A session's start makes one in a thread."""
    made = await asyncio.gather(*(asyncio.to_thread(certify, f"s-{number}", NAMES) for number in range(20)))
    assert len({each.certificate for each in made}) == 20
