"""The certificate of ``tensorwire serve`` and its private key."""

from __future__ import annotations

import argparse
import os
import re
import ssl
from pathlib import Path

from .output import UsageError


def check_certificate(chosen: argparse.Namespace) -> None:
    """Raise UsageError unless the files have a certificate and its private key.

    The errors of uvicorn and grpcio do not name the file. The paths become absolute, because a
    model may change the folder.
    """
    certfile, keyfile = chosen.ssl_certfile, chosen.ssl_keyfile
    if certfile is None:
        if keyfile is not None:
            raise UsageError("--ssl-keyfile requires --ssl-certfile")
        return
    key_option = "--ssl-certfile" if keyfile is None else "--ssl-keyfile"
    for option, path, content in (
        ("--ssl-certfile", certfile, "certificate"),
        (key_option, keyfile or certfile, "private key"),
    ):
        try:
            text = Path(path).read_text("latin-1")
        except OSError as error:
            raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from None
        if not re.search(rf"^-----BEGIN.* {content.upper()}-----\s*$", text, re.MULTILINE):
            raise UsageError(f"{option}: {path} does not contain a {content} in PEM format")

    def ask_for_password() -> str:
        raise UsageError(f"{key_option}: the private key is encrypted")

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certfile, keyfile, ask_for_password)
    except ssl.SSLError as error:
        problem = f"the certificate and the private key cannot be used: {error.reason or error}"
        raise UsageError(f"--ssl-certfile: {problem}") from None
    chosen.ssl_certfile = os.path.abspath(certfile)
    chosen.ssl_keyfile = os.path.abspath(keyfile or certfile)
