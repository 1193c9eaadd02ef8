"""`TlsProxy`: TLS in front of a server that has none (the wheel's is built without), for rediss://.

    with TlsProxy(server) as proxy:
        client = redis.Redis.from_url(proxy.url, ssl_ca_certs=proxy.ca)

It is a `Proxy` in all else: it can lose what it has decrypted. Its certificate is made on the fly, for 127.0.0.1 and
localhost, and signed by an authority that nobody knows but who is given `ca`.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import os
import ssl
from pathlib import Path
from typing import NamedTuple

from tests.servers.processes import new_directory
from tests.servers.proxy import Proxy
from tests.servers.valkey import HOST, Server


class Files(NamedTuple):
    """PEM files."""

    authority: Path
    certificate: Path  # with its key


@functools.cache
def certificate(owner: int, *, host: str = HOST, days: int = 1) -> Files:
    """A certificate for this address, and who signed it. With negative days it has expired."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    authority, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=Tests of Postroom")
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            )
        return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)

    folder = new_directory("tls")
    files = Files(folder / "authority.pem", folder / "server.pem")
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    files.authority.write_bytes(signed(name, authority.public_key(), x509.BasicConstraints(True, 0), signs))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))])
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files.certificate.write_bytes(signed(subject, key.public_key(), names) + secret)
    return files


class TlsProxy(Proxy):
    """A server behind TLS. With `verify_clients` it wants a certificate of its clients, of the same authority."""

    scheme = "rediss"

    def __init__(self, target: Server | int, *, host: str = HOST, days: int = 1, verify_clients: bool = False) -> None:
        """`host` and `days` of the certificate: a wrong address, or a negative number, makes one to be refused."""
        self.files = certificate(os.getpid(), host=host, days=days)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.files.certificate)
        if verify_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.files.authority)
        super().__init__(target, tls=context)

    @property
    def ca(self) -> str:
        """The file that clients are to trust."""
        return str(self.files.authority)
