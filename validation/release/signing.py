"""Signatures over a model's folder: OpenSSF model signing with a local P-256 key, made at first use.

The private key stays below HOME/keys, readable by its owner only; the signature (a Sigstore bundle that lists
every file's sha256) is kept in the store.
"""

from __future__ import annotations

import os
from pathlib import Path

from bloomery.config.settings import settings
from bloomery.errors import BloomeryError


class SignatureError(BloomeryError):
    """A model whose bytes are not what was signed, or signed by another key."""


def keys() -> tuple[Path, Path]:
    """Paths of the private and the public key (PEM) of this deployment, made if absent."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = settings().home / "keys"
    private, public = folder / "release.pem", folder / "release.pub"
    if not private.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        temporary = folder / f".tmp-{os.getpid()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        try:
            os.link(temporary, private)  # one winner, should two make it at once
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    loaded = serialization.load_pem_private_key(private.read_bytes(), None)
    text = loaded.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if not public.exists() or public.read_bytes() != text:
        temporary = folder / f".tmp-{os.getpid()}.pub"
        temporary.write_bytes(text)
        os.replace(temporary, public)
    return private, public


def sign(folder: Path, scratch: Path) -> bytes:
    """Signs every file of `folder`; returns the signature."""
    from model_signing import signing

    signature = scratch / "model.sig"
    signing.Config().use_elliptic_key_signer(private_key=keys()[0]).sign(folder, signature)
    return signature.read_bytes()


def verify(folder: Path, signature: bytes, scratch: Path) -> None:
    """Checks a folder against a signature of this deployment's key.

    Raises:
        SignatureError: names what differs.
    """
    from model_signing import verifying

    path = scratch / "given.sig"
    path.write_bytes(signature)
    try:
        verifying.Config().use_elliptic_key_verifier(public_key=keys()[1]).verify(folder, path)
    except Exception as error:  # the library raises many kinds
        raise SignatureError(
            f"{folder}: the signature does not hold: {error}", "export the model again, and sign it again"
        ) from error
