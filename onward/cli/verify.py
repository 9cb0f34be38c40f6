"""onward verify: check a model and its external data against a signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward import signing


def verify(
    model: Annotated[Path, typer.Argument(help="The model.")],
    key: Annotated[Path | None, typer.Option(help="The public key (PEM).")] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates to trust; may be repeated.")
    ] = None,
    identity: Annotated[str | None, typer.Option(help="The signer's identity at sigstore.")] = None,
    issuer: Annotated[str | None, typer.Option(help="The issuer of the identity.")] = None,
    signature: Annotated[
        Path | None, typer.Option(help="The signature file. Default: MODEL.sig")
    ] = None,
) -> None:
    """Check a model and its external data against its signature; exit code 2 if they do not match.

    \b
    onward verify model.onnx --key key.pub.pem
    """
    files = signing.verify(
        model,
        key,
        chain=chain or (),
        identity=identity,
        issuer=issuer,
        signature=signature,
    )
    typer.echo(f"{model} matches its signature: {', '.join(files)}")
