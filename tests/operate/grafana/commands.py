"""Runs command lines that come in, one after the other: a line of JSON each, and one back.

It is started with the Python of the environment that has grafana-client, which takes half a second.
"""

import contextlib
import io
import json
import os
import sys
import traceback

from ampwatch.cli import main


def run(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 - whatever it is, the test has to see it
        traceback.print_exc()
        return 99


def serve() -> None:
    start = dict(os.environ)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(start | asked["environment"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run(asked["argv"])
        told = {"status": status, "out": out.getvalue(), "err": err.getvalue()}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
