"""The web-config file, which an operator writes: a slip is a sentence, never a traceback or a page of memory."""

from __future__ import annotations

import re

from ampwatch.errors import AmpwatchError
from ampwatch.host.daemon.web_config import load
from tests.fuzz.engine import scratch

HASHED = b"$2y$04$abcdefghijklmnopqrstuuO1oT0nYz4KyXoGm8Yd2wq3yKq0PzS5W"
SEEDS = (
    b"tls_server_config:\n  cert_file: a.pem\n  key_file: b.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: c.pem\n  min_version: TLS13\n",
    b"basic_auth_users:\n  alice: " + HASHED + b"\n",
    b"http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n",
    b"rate_limit:\n  interval: 1s\n  burst: 10\n",
    b"a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nbasic_auth_users: {c: [*b, *b]}\n",
    b"{}",
)
WORDS = (b"tls_server_config:", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system", b"!!timestamp 2001-99-99", b"!!int ''", b"{" * 600, b"[" * 600, b"- " * 600, b"? ", b": ", b"\n  ", b"|\n", b"2001-99-99")  # fmt: skip
MANY = 120

MAX_SENTENCE = 4096
"""Characters of a refusal: what was given is repeated in it, and may be long."""


def one(data: bytes) -> object:
    path = scratch() / "web.yml"
    path.write_bytes(data)
    try:
        config = load(str(path))
    except AmpwatchError as error:
        sentence = str(error)
    else:
        return bool(config.users), bool(config.headers)
    assert len(sentence) < MAX_SENTENCE + 2 * len(data), len(sentence)
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "", sentence)[:120]
