"""Fetches the jars that Spark needs beside its own, once, with the Ivy that pyspark ships: Delta's, and
S3's for an S3 store.

No Spark session, no host named: Ivy's own default repository, or the one that the machine's Ivy settings
name.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from bloomery.errors import TransientError

HADOOP_AWS = "3.4.2"
"""The version of the hadoop-client that pyspark 4.1.3 ships."""
AWS_SDK = "2.29.52"
UNITY_CATALOG = "0.6.0"
PASSWORD = "changeit"  # noqa: S105  Java's customary password of a store that holds public certificates only


class JarsError(TransientError):
    """Jars could not be fetched."""


class Jar(NamedTuple):
    """Maven coordinates."""

    organisation: str
    module: str
    revision: str

    @property
    def file(self) -> str:
        """The name that Ivy gives it."""
        return f"{self.module}-{self.revision}.jar"


def delta_jars(home: Path, java: Path) -> list[Path]:
    """Delta's three jars below `home`/jars (10 MB), fetched unless they are there.

    Raises:
        JarsError: the download failed.
    """
    delta = version("delta-spark")
    spark = ".".join(version("pyspark").split(".")[:2])
    return _fetch(
        [
            Jar("io.delta", f"delta-spark_{spark}_2.13", delta),
            Jar("io.delta", "delta-storage", delta),
            Jar("io.unitycatalog", "unitycatalog-client", UNITY_CATALOG),
        ],
        home / "jars",
        java,
    )


def s3a_jars(home: Path, java: Path) -> list[Path]:
    """The jars by which Spark reads and writes s3a:// (640 MB), fetched unless they are there.

    Raises:
        JarsError: the download failed.
    """
    wanted = [
        Jar("org.apache.hadoop", "hadoop-aws", HADOOP_AWS),
        Jar("software.amazon.awssdk", "bundle", AWS_SDK),
    ]
    return _fetch(wanted, home / "jars", java)


def _fetch(jars: list[Jar], folder: Path, java: Path) -> list[Path]:
    paths = [folder / jar.file for jar in jars]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as name:
        scratch = Path(name)
        (scratch / "settings.xml").write_text(
            '<ivysettings><settings defaultResolver="central"/>'
            '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
        )
        (scratch / "ivy.xml").write_text(_module(jars))
        command = [str(java / "bin" / "java"), f"-Divy.cache.dir={scratch / 'cache'}", *_trust(scratch)]
        command += ["-jar", str(_ivy()), "-settings", "settings.xml", "-ivy", "ivy.xml", "-types", "jar"]
        command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
        answer = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        missing = [jar.file for jar in jars if not (scratch / jar.file).exists()]
        if answer.returncode or missing:
            said = re.findall(r"(?:ERROR|WARN|Exception).*", answer.stdout + answer.stderr)
            raise JarsError(
                f"{', '.join(missing) or 'jars'} could not be fetched: {' | '.join(said[:4])}",
                f"check the network (behind a proxy set SSL_CERT_FILE), or copy the files to {folder}",
            )
        for jar, path in zip(jars, paths, strict=True):
            (scratch / jar.file).replace(path)
    return paths


def _module(jars: list[Jar]) -> str:
    lines = [
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} "
        f'rev={quoteattr(jar.revision)} transitive="false" conf="default->default"/>'
        for jar in jars
    ]
    return (
        '<ivy-module version="2.0"><info organisation="bloomery" module="jars"/>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _ivy() -> Path:
    import pyspark

    return next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))


def _trust(scratch: Path) -> list[str]:
    """Java has a trust store of its own: gives it the certificates of SSL_CERT_FILE, where that is set."""
    bundle = os.environ.get("SSL_CERT_FILE")
    if not bundle or not Path(bundle).is_file():
        return []
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old roots with odd serial numbers are not ours to judge
        certificates = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    entries = [pkcs12.PKCS12Certificate(certificate, b"%d" % i) for i, certificate in enumerate(certificates)]
    store = scratch / "trust.p12"
    store.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode())))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]
