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

start = dict(os.environ)
for line in sys.stdin:
    argv, environment = json.loads(line)
    os.environ.clear()
    os.environ.update(start | environment)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(argv)
        except BaseException:  # noqa: BLE001 - whatever it is, the test has to see it
            traceback.print_exc()
            status = 99
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)  # noqa: T201
