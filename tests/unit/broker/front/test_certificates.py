"""The files of the broker's TLS, and the roles that client certificates name."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from escapement.broker.front.certificates import Certificates, TlsFiles, role_of
from escapement.errors import InvalidRequest
from support.certificates import Authority


def subject(*names: str) -> tuple[Any, ...]:
    return ((("countryName", "DE"),), *((("commonName", name),) for name in names))


@pytest.mark.parametrize(
    ("certificate", "role"),
    [
        (None, None),
        ({}, None),
        ({"subject": subject("billing")}, "billing"),
        ({"subject": subject("a", "b")}, None),
        ({"subject": subject()}, None),
        ({"subject": subject("bill\0ing")}, None),
        ({"subject": subject("x" * 201)}, None),
        (
            {
                "subject": subject("billing"),
                "subjectAltName": (("DNS", "h"), ("URI", "spiffe://shop/billing")),
            },
            "spiffe://shop/billing",
        ),
        ({"subject": subject("a"), "subjectAltName": (("URI", "x:a"), ("URI", "x:b"))}, None),
        ({"subject": subject("a"), "subjectAltName": (("DNS", "h"),)}, "a"),
    ],
)
def test_certificate_names_one_role_or_none(certificate: Any, role: str | None) -> None:
    """O2: the URI, or else the common name; a doubtful certificate names no role."""
    assert role_of(certificate) == role


def test_least_version_is_1_2_and_clients_of_an_authority_are_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.certify("localhost")
    plain = Certificates(TlsFiles(Path(files.cert), Path(files.key)))
    assert plain.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert plain.context.verify_mode is ssl.CERT_NONE
    mutual = Certificates(TlsFiles(Path(files.cert), Path(files.key), Path(authority.ca)))
    assert mutual.context.verify_mode is ssl.CERT_REQUIRED


def test_bad_new_file_is_logged_and_the_old_certificate_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O2: a mistake while a certificate is renewed stops nothing."""
    files = Authority(tmp_path).certify("localhost")
    certificates = Certificates(TlsFiles(Path(files.cert), Path(files.key)))
    before = certificates.context
    good = Path(files.key).read_bytes()
    for bad in (b"", b"no key", good[: len(good) // 2]):
        Path(files.key).write_bytes(bad)
        caplog.clear()
        certificates.reload()
        assert certificates.context is before
        assert [(r.levelno, files.key in r.message) for r in caplog.records] == [
            (logging.ERROR, True)
        ]
    Path(files.key).unlink()
    certificates.reload()
    assert certificates.context is before
    Path(files.key).write_bytes(good)
    certificates.reload()
    assert certificates.context is not before


def test_unusable_file_is_refused_with_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.certify("localhost")
    other = authority.certify("localhost", file="other")
    cert, key, missing = Path(files.cert), Path(files.key), tmp_path / "missing.pem"
    for bad in (
        TlsFiles(missing, key),
        TlsFiles(cert, missing),
        TlsFiles(cert, key, missing),
    ):
        with pytest.raises(InvalidRequest, match=r"missing.pem.*No such file"):
            Certificates(bad)
    with pytest.raises(InvalidRequest, match=r"other-key.pem: key values mismatch"):
        Certificates(TlsFiles(cert, Path(other.key)))


def test_encrypted_key_is_refused_without_asking_for_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    files = Authority(tmp_path).certify("localhost")
    key = pem.load_pem_private_key(Path(files.key).read_bytes(), None)
    Path(files.key).write_bytes(
        key.private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(InvalidRequest, match="the key is encrypted"):
        Certificates(TlsFiles(Path(files.cert), Path(files.key)))
