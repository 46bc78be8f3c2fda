"""Settings as the environment and the command line have them: a line each, ``NAME=value`` or an argument."""

from __future__ import annotations

import functools
import io
import logging
from contextlib import redirect_stderr, redirect_stdout

from ampwatch.cli import make_parser, split
from ampwatch.errors import AmpwatchError
from ampwatch.settings import Settings

SEEDS = (
    b"AMPWATCH_RING_SLOTS=16384\nAMPWATCH_PORT=10917\nAMPWATCH_HOST=::1",
    b"AMPWATCH_PEAK_FLOPS=float16=989e12, tf32=494e12\nAMPWATCH_LEVEL=deep",
    b"AMPWATCH_KERNEL_PATTERNS=my_(gemm|conv)\\d+=tensor:float16;x=cuda",
    b"AMPWATCH_OVERHEAD_BUDGET=0.01\nAMPWATCH_RUN=a/b:c\nAMPWATCH_STALE_SECONDS=1e3\nAMPWATCH_SLOTS=1",
    b"AMPWATCH_RING_DIR=relative/../place\nAMPWATCH_REPORT_DIR=/x\nAMPWATCH_GPU=demo",
    b"daemon\n--port\n10917\n--host\n0.0.0.0\n--web.config.file\nx.yml\n--lock-fd\n3",
    b"trace\nout.json.gz\n--rank\n3\n--iterations\n2\n--timeout\n5",
    b"report\ngpt\n--html\nout.html",
    b"run\n--level\ndeep\n-m\ntrain\n--x\n1",
    b"deploy\nkubernetes\n--help",
    b"grafana\ninstall\n--url\nhttp://localhost:3000",
    b"demo\n--seconds\n5\n--fault-after\n2\n--port\n0",
    b"ops\n--run\ngpt\n--json",
    b"explain\nscale_collapse",
)
WORDS = (b"AMPWATCH_", b"--", b"=", b"a{99999999999}=tensor", b"(" * 3000 + b"=tensor", b"inf", b"0x10", b"1_0", b"/" * 5000)  # fmt: skip

MAX_LINES = 100
"""More arguments take argparse time that grows with their square."""

parser = functools.cache(make_parser)
logger = logging.getLogger("ampwatch")
logger.addHandler(logging.NullHandler())


def one(data: bytes) -> object:
    # Neither a variable nor an argument can have a NUL; both come as bytes, decoded like paths.
    lines = data.replace(b"\0", b"").decode("utf-8", "surrogateescape").split("\n")[:MAX_LINES]
    environ = dict(line.split("=", 1) for line in lines if "=" in line.lstrip("=-"))
    logger.propagate = False
    try:
        settings: object = type(Settings.resolve(environ=environ)).__name__
        assert Settings.resolve(environ=environ).run_name
    except AmpwatchError as error:
        settings = str(error).partition(",")[0][:60]
    finally:
        logger.propagate = True
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            ours, program = split(lines)
            verb = parser().parse_args(ours)
        return settings, len(program or ()), sorted(vars(verb))[:3] == []
    except AmpwatchError as error:
        return settings, str(error)[:40]
    except SystemExit as end:
        # That of a command line that makes no sense, or of --help.
        status = end.code
    assert status in (0, 2), status
    return settings, said.getvalue()[-60:-20]
