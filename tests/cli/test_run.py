"""`ampwatch run`, in real processes: the program is what it is without, and is watched."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import WITH_VALUE, split
from ampwatch.cli.run import STARTUP, add_arguments, command_of
from tests.host.daemon.parts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import os, sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

def step(factor=1.0, model=model):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean() * factor
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
"""

DIGEST = """
import argparse, hashlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("words", nargs="*")
arguments = parser.parse_args()
losses = [step() for _ in range(30)]
digest = hashlib.sha256(repr(losses).encode())
for value in [*model.state_dict().values(), torch.get_rng_state()]:
    digest.update(value.numpy().tobytes())
print(digest.hexdigest(), scaler.state_dict(), arguments, sys.argv)
print(__name__, __spec__ and __spec__.name, sys.path[0], sys.flags.optimize)
print([p for p in sys.path if "ampwatch" in p], sys.executable)
sys.exit(7)
"""


class Program(subprocess.CompletedProcess[str]):
    stdout: str
    stderr: str


def started(*words: str, where: Path, ours: bool = True, **environment: str) -> Program:
    """Run it to its end, under ampwatch or not."""
    command = [sys.executable, "-m", "ampwatch", "run", "--no-serve", *words] if ours else [*words]
    done = subprocess.run(
        command,
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return Program(done.args, done.returncode, done.stdout, done.stderr)


def watched(program: Program) -> int:
    return program.stderr.count("ampwatch: watching run")


@pytest.mark.rotating
@pytest.mark.parametrize("form", ["script", pytest.param("module", marks=pytest.mark.nightly)])
def test_a_program_gives_the_same_bits_output_and_exit_status(form: str, tmp_path: Path) -> None:
    """Arguments, also those with dashes, and how the program sees itself, are the same as well."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(HEAD + DIGEST)
    words = ["package/train.py"] if form == "script" else ["-m", "package.train"]
    words += ["--lr", "3e-4", "--", "-x", "--level"]

    bare = started(sys.executable, *words, where=tmp_path, ours=False)
    ours = started("--level", "deep", "--run", "mine", *words, where=tmp_path)

    assert bare.returncode == ours.returncode == 7
    assert ours.stdout == bare.stdout
    assert "'-x', '--level'" in ours.stdout
    assert bare.stderr == ""
    assert ours.stderr == "ampwatch: watching run mine: findings only, at the end\n"


@pytest.mark.rotating
def test_an_exception_and_a_log_are_those_of_the_program(tmp_path: Path) -> None:
    """No frame of ours, the same exit status; what was found is told after it.

    The program logs to stdout, and gets no line of ampwatch there.
    """
    script = tmp_path / "train.py"
    script.write_text(
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, level=logging.DEBUG)\n"
        + HEAD
        + "for i in range(24):\n    step(1.0 if i < 5 else float('inf'))\nraise KeyError('x')\n"
    )
    line = script.read_text().count("\n")
    raised = (
        f'Traceback (most recent call last):\n  File "{script}", line {line}, in <module>\n'
        "    raise KeyError('x')\nKeyError: 'x'\n"
    )
    ours = started(str(script), where=tmp_path)

    assert ours.returncode == 1
    assert raised in ours.stderr
    assert watched(ours) == 1
    assert "CRITICAL  scale_collapse" in ours.stderr
    assert "ampwatch: WARNING run train step 9: scale_collapse in optimizer 0: " in ours.stderr
    assert ours.stdout == ""


@pytest.mark.nightly
def test_torchrun_has_each_rank_watched_once(tmp_path: Path) -> None:
    """The launcher itself makes no optimizer, so nothing is said of it."""
    script = tmp_path / "train.py"
    script.write_text(
        HEAD
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
for i in range(5):
    step(model=model)
total = torch.ones(1)
dist.all_reduce(total)
import sys
from ampwatch.training import monitor
# In one piece: two processes write to one pipe.
sys.stdout.write("ranks %d, monitors %d\\n" % (total, len(monitor._open)))
dist.destroy_process_group()
"""
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    ours = started(
        *words, "--nproc-per-node=2", str(script), where=tmp_path, GLOO_SOCKET_IFNAME="lo"
    )

    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == "ranks 2, monitors 1\n" * 2
    assert watched(ours) == 1  # one of them says so, for all


@pytest.mark.nightly
def test_workers_are_not_watched(tmp_path: Path) -> None:
    """Children of a DataLoader, spawned with an interpreter of their own, and plain helpers."""
    script = tmp_path / "train.py"
    script.write_text(
        HEAD
        + """
import subprocess
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.zeros(2) + index

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
    for batch in loader:
        step()
    subprocess.run([sys.executable, "-c", "import torch; print('helped')"], check=True)
    print("main done", flush=True)
"""
    )
    ours = started(str(script), where=tmp_path)

    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == "helped\nmain done\n"
    assert watched(ours) == 1


@pytest.mark.nightly
def test_a_training_in_a_child_that_was_forked_is_watched_there(tmp_path: Path) -> None:
    """The parent, which trains nothing, is not."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, sys, torch
child = os.fork()
if child == 0:
"""
        + "".join(f"    {line}\n" for line in HEAD.splitlines())
        + """
    for _ in range(3): step()
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    ours = started(str(script), where=tmp_path)

    assert (ours.returncode, ours.stdout) == (0, "5\n"), ours.stderr
    assert watched(ours) == 1


@pytest.mark.rotating
@pytest.mark.parametrize(
    "front",
    [
        "class Old:\n    find_module = lambda *_: None\nsys.meta_path.insert(0, Old())\n",
        pytest.param(
            "sys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]\n",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_importers_of_the_program_are_no_trouble(front: str, tmp_path: Path) -> None:
    """One of the old kind is passed over, as Python does; ours may be thrown out."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys\n{front}import torch\nprint(torch.ones(1).item())\n")
    ours = started(str(script), where=tmp_path)

    assert (ours.returncode, ours.stdout, ours.stderr) == (0, "1.0\n", "")


def test_a_sitecustomize_of_the_user_is_read_as_always(tmp_path: Path) -> None:
    """It is the one in sys.modules then, and our directory is nowhere on the path."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; print('theirs'); mark = 1")
    script = tmp_path / "main.py"
    script.write_text(
        "import sys, sitecustomize\nprint(sitecustomize.mark, sitecustomize.__file__)\n"
        f"print({str(STARTUP)!r} in sys.path, 'torch' in sys.modules, 'ampwatch' in sys.modules)"
    )
    ours = started(str(script), where=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{site}")

    # Once for `ampwatch run` itself, once for the program.
    told = f"theirs\ntheirs\n1 {site / 'sitecustomize.py'}\nFalse False False\n"
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, told, "")


def test_a_sitecustomize_that_raises_is_reported_by_python_itself(tmp_path: Path) -> None:
    """The program is not ended, as without us."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise ValueError('theirs is broken')")
    bare, ours = (
        started(*words, "-c", "print(1)", where=tmp_path, ours=ours, PYTHONPATH=f"{ROOT}:{site}")
        for words, ours in (([sys.executable], False), ([sys.executable], True))
    )

    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout) == (0, "1\n")
    assert ours.stderr == bare.stderr * 2
    assert "theirs is broken" in bare.stderr


def test_an_interrupt_ends_it_as_it_ends_any_program(tmp_path: Path) -> None:
    """By the signal itself, with the usual traceback."""
    script = tmp_path / "main.py"
    script.write_text("raise KeyboardInterrupt")

    ours = started(str(script), where=tmp_path)

    assert ours.returncode == -signal.SIGINT
    assert ours.stderr.strip().endswith("KeyboardInterrupt")
    assert "ampwatch" not in ours.stderr


def test_signals_are_what_they_are_for_other_programs(tmp_path: Path) -> None:
    """Python ignores SIGPIPE; what is started must not inherit that. Options it does inherit."""
    code = "echo $AMPWATCH_LEVEL; kill -PIPE $$; echo alive"
    ours = started("--level", "light", "sh", "-c", code, where=tmp_path)

    assert (ours.returncode, ours.stdout) == (-signal.SIGPIPE, "light\n")


def test_a_script_that_does_not_exist_is_what_python_says_it_is(tmp_path: Path) -> None:
    """A program that does not exist is what a shell says."""
    script = started("nothing.py", where=tmp_path)
    program = started("nothing", where=tmp_path)

    assert script.returncode == 2
    assert "No such file" in script.stderr
    assert program.returncode == 127
    assert (
        "expected a script.py, -m MODULE or a program on the PATH, got 'nothing'" in program.stderr
    )


def test_options_that_are_not_usable_are_refused_before_the_program_runs(tmp_path: Path) -> None:
    """They are arguments of ampwatch, not of the program."""
    (tmp_path / "main.py").write_text("print('ran')")
    level = started("--level", "loud", "main.py", where=tmp_path)
    nothing = started(where=tmp_path)

    assert (level.returncode, level.stdout) == (1, "")
    assert "`level`: expected one of" in level.stderr
    assert (nothing.returncode, nothing.stdout) == (2, "")


def test_what_is_a_script_and_what_is_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, or because it is there and is no program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("print(1)")
    (tmp_path / "folder").mkdir()
    python = sys.executable

    assert command_of(["train.py", "-x"]) == [python, "train.py", "-x"]
    assert command_of(["plain"]) == [python, "plain"]
    assert command_of(["folder"]) == [python, "folder"]
    assert command_of(["sh", "-c", "true"]) == ["sh", "-c", "true"]
    assert command_of(["-m", "a.b", "--x"]) == [python, "-m", "a.b", "--x"]
    assert command_of([]) == []


@pytest.mark.parametrize(
    ("words", "ours", "program"),
    [
        ("run t.py --level 3", "run", "t.py --level 3"),
        ("run --level deep t.py -- -m", "run --level deep", "t.py -- -m"),
        ("run --run=a --no-serve -m a.b -- --run", "run --run=a --no-serve", "-m a.b -- --run"),
        ("run -- ./program -m", "run", "./program -m"),
        ("run --help", "run --help", ""),
        ("trace -- -m", "trace -- -m", ""),
    ],
)
def test_the_words_of_the_program_are_never_ours(words: str, ours: str, program: str) -> None:
    """Whatever they look like."""
    assert split(words.split()) == (ours.split(), program.split())


def test_the_options_that_take_a_value_are_known() -> None:
    """To find the program, a command line is split before it is parsed."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    options = [a for a in parser._actions if a.option_strings and a.nargs is None]
    assert {option for action in options for option in action.option_strings} == set(WITH_VALUE)
