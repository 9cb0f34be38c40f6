"""onward sign: a signature over a model and its external data."""

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
        bool, typer.Option("--new-key", help="Make the key first, and its public half beside it.")
    ] = False,
    password: Annotated[str | None, typer.Option(help="Of the private key.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="The signing certificate (PEM) of the key.")
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates above it; may be repeated.")
    ] = None,
    identity_token: Annotated[str | None, typer.Option(help="For sigstore.")] = None,
    signature: Annotated[
        Path | None, typer.Option(help="Where to write it. Default: MODEL.sig")
    ] = None,
) -> None:
    """Sign a model and its external data; `onward verify` sees whether anything has changed.

    \b
    onward sign model.onnx --key key.pem --new-key
    """
    if new_key:
        if key is None:
            raise typer.BadParameter("--new-key needs --key: where to write it")
        public = key.with_suffix(".pub.pem")
        signing.new_key(key, public)
        typer.echo(f"made {key} (keep it secret) and {public} (give it away)")
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
