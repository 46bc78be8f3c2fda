"""Real certificates for 127.0.0.1, made by openssl: a CA, a server, a client, a stranger."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.services import require


def make_certificates(directory: Path) -> Path:
    """Return ``directory``, with ``ca``, ``server``, ``client`` and ``stranger`` (``.pem``, ``.key``)."""
    openssl = require("openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for authority in ("ca", "stranger"):
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.pem")
        run("req", "-x509", *key, *files, "-subj", f"/CN={authority}")
    for name in ("server", "client"):
        run(
            "req",
            "-x509",
            *key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-subj",
            f"/CN={name}",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=CA:FALSE",
        )
    run("pkey", "-in", "server.key", "-aes128", "-passout", "pass:secret", "-out", "locked.key")
    return directory
