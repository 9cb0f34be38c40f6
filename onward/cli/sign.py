"""onward sign: sign a model and its external data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward import signing


def sign(
    model: Annotated[Path, typer.Argument(help="The model; its external data is signed with it.")],
    key: Annotated[
        Path | None, typer.Option(help="The private key (PEM). Without one: sigstore.")
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="First create the key and its public key.")
    ] = False,
    password: Annotated[str | None, typer.Option(help="The password of the private key.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="The signing certificate (PEM) of the key.")
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates that signed it; may be repeated.")
    ] = None,
    identity_token: Annotated[
        str | None, typer.Option(help="An identity token for sigstore.")
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(help="The signature file. Default: MODEL.sig")
    ] = None,
) -> None:
    """Sign a model and its external data; `onward verify` detects changes.

    \b
    onward sign model.onnx --key key.pem --new-key
    """
    if new_key:
        if key is None:
            raise typer.BadParameter("--new-key needs --key: the file to write")
        public = key.with_suffix(".pub.pem")
        signing.new_key(key, public)
        typer.echo(f"created {key} (keep it secret) and {public} (publish it)")
    target = signing.sign(
        model,
        key,
        password=password,
        certificate=certificate,
        chain=chain or (),
        identity_token=identity_token,
        signature=signature,
    )
    files = ", ".join(str(file.relative_to(model.parent)) for file in signing.signed_files(model))
    typer.echo(f"signed {files}: {target}")
