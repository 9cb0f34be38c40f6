"""Sign a model with its external data, and verify that neither has changed.

    sign("model.onnx", "private.pem")      # writes model.onnx.sig
    verify("model.onnx", "public.pem")     # ["model.onnx", "model.onnx.data"], or SignatureInvalid

The signature is a sigstore bundle, as OpenSSF's model-signing writes and reads it: made with an
elliptic-curve key, with a certificate, or without any key through sigstore.
Needs `pip install onward[signing]`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward.errors import InvalidModel, OptionError, ProviderMissing, SignatureInvalid
from onward.graph.limits import ModelLimits
from onward.graph.paths import (
    check_exists,
    check_readable,
    check_writable,
    read_model,
    writing,
)
from onward.graph.scan.model_scan import scan_model

StrPath = str | os.PathLike[str]

# Signing and verifying load no model: only what is too large to scan is refused.
_ANY_MODEL = ModelLimits(
    elements=1 << 200,
    expanded_nodes=1 << 200,
    folded_elements=1 << 200,
    folding_work=1 << 200,
    allow_ep_context=True,
)
_CHANGED = re.compile(r"(?:Hash mismatch for|Missing files in model '[^']*':) '?([^',\]]+)")


def sign(
    path: StrPath,
    key: StrPath | None = None,
    *,
    password: str | None = None,
    certificate: StrPath | None = None,
    chain: Sequence[StrPath] = (),
    identity_token: str | None = None,
    signature: StrPath | None = None,
) -> Path:
    """Sign a model and its external data; returns the path of the signature.

    With a private key; with a private key and its certificate (and the chain above it); or, with no
    key, with the identity that sigstore finds: by `identity_token`, or in a browser.
    """
    model_signing = _package()
    path, target = Path(path), _signature_of(path, signature)
    files = signed_files(path)
    check_writable(target)
    for what, file in (("private key", key), ("certificate", certificate)):
        if file is not None:
            check_exists(Path(file), what)
    config = model_signing.signing.Config()
    config.set_hashing_config(_FileHashing(model_signing.hashing.Config(), files))
    if certificate is not None and key is None:
        raise OptionError("a certificate needs its private key to sign\ngive the key, too")
    try:
        if certificate is not None:
            config.use_certificate_signer(
                private_key=key, signing_certificate=certificate, certificate_chain=list(chain)
            )
        elif key is not None:
            config.use_elliptic_key_signer(private_key=key, password=password)
        else:
            config.use_sigstore_signer(identity_token=identity_token)
    except (ValueError, TypeError) as error:
        raise OptionError(f"{key} is not a private key for this: {_first(error)}") from error
    with writing(target):
        config.sign(path.parent, target)
    return target


def verify(
    path: StrPath,
    key: StrPath | None = None,
    *,
    chain: Sequence[StrPath] = (),
    identity: str | None = None,
    issuer: str | None = None,
    signature: StrPath | None = None,
) -> list[str]:
    """Verify a model and its external data; returns the files that are as they were signed.

    With the public key; with the chain of trusted certificates; or with the signer's identity and
    issuer in sigstore. A file that has changed raises SignatureInvalid.
    """
    model_signing = _package()
    path, source = Path(path), _signature_of(path, signature)
    check_readable(path)
    if key is not None:
        check_exists(Path(key), "public key")
    if not source.is_file():
        raise SignatureInvalid(f"{path} has no signature\nit should be in {source}")
    config = model_signing.verifying.Config().set_ignore_unsigned_files(True)
    try:
        if key is not None:
            config.use_elliptic_key_verifier(public_key=key)
        elif chain:
            config.use_certificate_verifier(certificate_chain=list(chain))
        elif identity is not None and issuer is not None:
            config.use_sigstore_verifier(identity=identity, oidc_issuer=issuer)
        else:
            raise OptionError("verify with a public key, a chain, or an identity and its issuer")
    except OptionError:
        raise
    except (ValueError, TypeError) as error:
        raise OptionError(f"{key} is not a public key: {_first(error)}") from error
    try:
        config.verify(path.parent, source)
        names = _names(source)
    except Exception as error:  # the package and its parts raise many kinds
        raise SignatureInvalid(_why(path, error)) from error
    unsigned = [str(file) for file in _own_files(path) if file.as_posix() not in names]
    if unsigned:
        raise SignatureInvalid(f"{path}: {unsigned[0]} is not covered by the signature")
    return names


def signed_files(path: Path) -> list[Path]:
    """The model and the files of its external data."""
    check_readable(path)
    return [path.parent / file for file in _own_files(path)]


def new_key(private: StrPath, public: StrPath) -> None:
    """Make a key pair for signing (elliptic curve P-256), as two new PEM files."""
    _package()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pair = ec.generate_private_key(ec.SECP256R1())
    secret = pair.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    shown = pair.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for path, data, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        with writing(Path(path)), open(os.open(path, flags, mode), "wb") as file:
            file.write(data)


def _own_files(path: Path) -> list[Path]:
    """The model's file and those of its external data, relative to the model's folder."""
    files = [Path(path.name)]
    if path.suffix != ".onnx":
        return files
    data = read_model(path, _ANY_MODEL.file_bytes)
    for tensor in scan_model(data, _ANY_MODEL, any_domain=True, name=str(path)).external:
        location = Path((tensor.external or {}).get("location", ""))
        if location.is_absolute() or ".." in location.parts:
            raise InvalidModel(f"external data of {tensor.name!r} is outside the model's folder")
        if location not in files:
            files.append(location)
    return files


class _FileHashing:
    """Hashes the given files of the model's folder, and no others."""

    def __init__(self, hashing: Any, files: list[Path]) -> None:
        self._hashing, self._files = hashing, files

    def hash(self, folder: Path) -> Any:
        return self._hashing.hash(folder, files_to_hash=self._files)


def _names(signature: Path) -> list[str]:
    """The files that a signature covers."""
    envelope = json.loads(signature.read_text())["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return [entry["name"] for entry in statement["predicate"]["resources"]]


def _why(path: Path, error: Exception) -> str:
    changed = _CHANGED.search(str(error).replace("\\", ""))  # it quotes a list of quotes
    if changed is not None:
        return f"{path}: {changed[1]} is not what was signed"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{path}: {Path(error.filename).name} was signed, and is missing"
    return f"{path}: the signature does not hold: {_first(error)}"


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__


def _signature_of(path: StrPath, signature: StrPath | None) -> Path:
    return Path(signature) if signature is not None else Path(f"{os.fspath(path)}.sig")


def _package() -> Any:
    try:
        import model_signing
    except ImportError as error:
        raise ProviderMissing(
            f"signing needs packages that are not installed ({error.name})\n"
            "install them with: pip install onward[signing]"
        ) from error
    return model_signing
