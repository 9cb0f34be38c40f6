"""Signatures verify, and a change is named."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from onward import signing
from onward.errors import FileMissing, OptionError, ProviderMissing, SignatureInvalid, WriteFailed
from onward.signing import new_key, sign, verify
from tests.graph.test_files import save_external

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages behind the signatures


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with external data and a key pair next to its folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    new_key(tmp_path / "private.pem", tmp_path / "public.pem")
    return save_external(folder)


def keys(model: Path) -> tuple[Path, Path]:
    above = model.parent.parent
    return above / "private.pem", above / "public.pem"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_signed_model_verifies(model: Path) -> None:
    private, public = keys(model)
    assert sign(model, private) == model.with_name("model.onnx.sig")
    assert sorted(verify(model, public)) == ["model.onnx", "w.bin"]
    (model.parent / "notes.txt").write_text("next to the model, not part of it")
    assert sorted(verify(model, public)) == ["model.onnx", "w.bin"]


@pytest.mark.parametrize("name", ["model.onnx", "w.bin"])
def test_a_changed_file_is_named(model: Path, name: str) -> None:
    private, public = keys(model)
    sign(model, private)
    flip(model.parent / name, 7)
    with pytest.raises(SignatureInvalid, match=f"{name} is not what was signed"):
        verify(model, public)


def test_missing_external_data_is_named(model: Path) -> None:
    private, public = keys(model)
    sign(model, private)
    (model.parent / "w.bin").unlink()
    with pytest.raises(SignatureInvalid, match=r"w\.bin"):
        verify(model, public)


def test_another_key_does_not_verify(model: Path, tmp_path: Path) -> None:
    sign(model, keys(model)[0])
    new_key(tmp_path / "other.pem", tmp_path / "other.pub.pem")
    with pytest.raises(SignatureInvalid, match="the signature does not hold"):
        verify(model, tmp_path / "other.pub.pem")


def test_a_signature_must_cover_external_data(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = keys(model)
    with monkeypatch.context() as patch:
        patch.setattr(signing, "_own_files", lambda path: [Path(path.name)])
        sign(model, private)
    with pytest.raises(SignatureInvalid, match=r"w\.bin is not covered by the signature"):
        verify(model, public)


def test_missing_and_broken_signatures_are_refused(model: Path) -> None:
    with pytest.raises(SignatureInvalid, match="has no signature"):
        verify(model, keys(model)[1])
    model.with_name("model.onnx.sig").write_text("{}")
    with pytest.raises(SignatureInvalid, match="the signature does not hold"):
        verify(model, keys(model)[1])


def test_sign_and_verify_need_a_key_or_identity(model: Path) -> None:
    private, public = keys(model)
    sign(model, private)
    with pytest.raises(OptionError, match="verify with a public key, a chain, or an identity"):
        verify(model)
    with pytest.raises(OptionError, match="is not a private key"):
        sign(model, public)
    with pytest.raises(OptionError, match="give the key, too"):
        sign(model, certificate=public)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    new_key(tmp_path / "a.pem", tmp_path / "b.pem")
    assert (tmp_path / "a.pem").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        new_key(tmp_path / "a.pem", tmp_path / "c.pem")


def certify(name: str, key: ec.EllipticCurvePrivateKey, by: str,
            signer: ec.EllipticCurvePrivateKey, is_root: bool) -> bytes:  # fmt: skip
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(not is_root, False, False, False, False, is_root, is_root, False, False)
    built = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_root, None), critical=True)
        .add_extension(usage, critical=True)
    )
    if not is_root:
        purpose = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING])
        built = built.add_extension(purpose, critical=False)
    return built.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_certificate_signs_and_its_chain_verifies(model: Path, tmp_path: Path) -> None:
    root, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "root.crt").write_bytes(certify("root", root, "root", root, True))
    (tmp_path / "leaf.crt").write_bytes(certify("leaf", key, "root", root, False))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "leaf.pem").write_bytes(pem)
    sign(
        model,
        tmp_path / "leaf.pem",
        certificate=tmp_path / "leaf.crt",
        chain=[tmp_path / "root.crt"],
    )
    assert "w.bin" in verify(model, chain=[tmp_path / "root.crt"])
    flip(model.parent / "w.bin", 0)
    with pytest.raises(SignatureInvalid, match=r"w\.bin is not what was signed"):
        verify(model, chain=[tmp_path / "root.crt"])


def test_without_the_extra_the_error_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(ProviderMissing, match=r"pip install onward\[signing\]"):
        sign(model, keys(model)[0])


@pytest.mark.integration
def test_the_command_line_signs_and_verifies(model: Path, tmp_path: Path) -> None:
    def onward(*words: object) -> subprocess.CompletedProcess[str]:
        program = "from onward.cli.main import main; main()"
        command = [sys.executable, "-c", program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True)

    key = tmp_path / "mine.pem"
    made = onward("sign", model, "--key", key, "--new-key")
    assert made.returncode == 0, made.stderr
    assert "signed model.onnx, w.bin" in made.stdout
    good = onward("verify", model, "--key", tmp_path / "mine.pub.pem")
    assert (good.returncode, len(good.stdout.splitlines())) == (0, 1), good.stderr
    flip(model.parent / "w.bin", 3)
    bad = onward("verify", model, "--key", tmp_path / "mine.pub.pem")
    assert bad.returncode == 2
    assert "w.bin is not what was signed" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_missing_keys_and_unwritable_paths_are_named(
    tmp_path: Path,
) -> None:
    model = save_external(tmp_path)
    new_key(tmp_path / "k.pem", tmp_path / "k.pub")
    with pytest.raises(FileMissing, match=r"no private key at .*l\.pem\n"):
        sign(model, tmp_path / "l.pem")
    with pytest.raises(FileMissing, match=r"no public key at .*l\.pub\n"):
        verify(model, tmp_path / "l.pub")
    with pytest.raises(WriteFailed, match=r"m\.sig cannot be written: there is no folder .*no\n"):
        sign(model, tmp_path / "k.pem", signature=tmp_path / "no" / "m.sig")
    with pytest.raises(WriteFailed, match=r"k\.pem cannot be written: .*k\.pub is not a folder"):
        new_key(tmp_path / "k.pub" / "k.pem", tmp_path / "x")
