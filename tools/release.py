"""A release, built and checked, and published nowhere: ``make release``.

What is committed is exported twice, to two directories, and built there under different conditions; both builds have
to be the same, byte for byte, and so has a wheel that is built from the sdist. Then the wheel is compared with the
repository, and used with each Python there is, where nothing else of ampwatch is: from a cache, without a network,
without a compiler, as a user who owns nothing. Beside wheel and sdist ``dist/`` gets an SBOM (CycloneDX) of what the
wheel brings along, what CHANGELOG.md says of the version, and SHA256SUMS, which ``--sign KEY`` signs with ssh-keygen.

Usage: ``python -m tools.release --tools .venv-release/bin [--out dist] [--sign KEY] [--python PYTHON ...]``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import BytesParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.native import MODULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from email.message import Message

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "constraints-dev.txt"
EXTRAS = ("ui", "web")
"""What the SBOM has beside what is always installed."""

SUMS = "SHA256SUMS"
SBOM = "sbom.cdx.json"
NOTES = "CHANGES.md"
PYTHONS = tuple(f"python3.{minor}" for minor in range(10, 15))
"""Tried with what is on the PATH of these, beside the Python that runs this."""

NOBODY = "65534"
NAMESPACE = "ampwatch-release"
"""What signatures are for: one made for something else does not hold for a release (ssh-keygen -Y)."""

NEVER_SHIPPED = re.compile(
    r"(^|/)(tests|benchmarks|shared|__pycache__|\.venv[^/]*|\.git)(/|$)|\.pyc$"
)

WHICH = """
import importlib.util, os, platform, sys
print(platform.python_version(), os.path.realpath(sys.executable), sep="\\n")
if importlib.util.find_spec("torch"):
    import torch
    print(torch.__version__, os.path.dirname(torch.__path__[0]), sep="\\n")
"""

IMPORTS = """
import os, pathlib, shutil, sys, ampwatch
from ampwatch.training.native import core
assert pathlib.Path(ampwatch.__file__).is_relative_to(sys.prefix), ampwatch.__file__
assert core is not None, "the C part is not loaded"
assert os.getuid() and not shutil.which("cc")
"""

SMOKE = f"""{IMPORTS}
import torch
model = torch.nn.Linear(4, 2)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
with ampwatch.monitor(model, scaler, serve=False, run="tried") as watch:
    for step in range(40):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(3, 4)).float().square().mean()
        scaler.scale(loss).backward()
        if step >= 30:
            model.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert watch.report("html")
    pathlib.Path("tried.json").write_text(watch.report("json"))
assert watch.last_step.step == 39, watch.last_step
assert [finding.kind for finding in watch.findings] == ["scale_collapse"], watch.findings
"""


class ReleaseError(Exception):
    """A release that cannot be made as it should be."""


def main() -> int:
    """Make the release; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--tools", type=Path, required=True, help="directory of cyclonedx-py")
    add("--out", type=Path, default=ROOT / "dist", help="directory that is made anew")
    add("--sign", type=Path, metavar="KEY", help="private key to sign SHA256SUMS with")
    add(
        "--python",
        action="append",
        metavar="PYTHON",
        help="a Python to try the wheel with, and the PyTorch that it has; may be given again; the one that"
        f" runs this and those on the PATH ({PYTHONS[0]} ...) if not given",
    )
    args = parser.parse_args()
    try:
        named = [str(Path(p).absolute()) if os.sep in p else p for p in args.python or ()]
        release(args.out.absolute(), args.tools.absolute(), args.sign, named or _pythons())
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


def release(out: Path, tools: Path, key: Path | None, pythons: Iterable[str]) -> None:
    """Build, check, sum up and, with a key, sign.

    Raises:
        ReleaseError: If something is not as it should be.
    """
    commit = _run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    notes = notes_of(
        _run("git", "show", "HEAD:CHANGELOG.md", cwd=ROOT),
        _run("git", "show", "HEAD:ampwatch/version.py", cwd=ROOT),
    )
    if _run("git", "status", "--porcelain", cwd=ROOT):
        print("==> There are changes that are not committed; they are left out")
    epoch = _run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    print(f"==> Building {commit[:12]} twice, with SOURCE_DATE_EPOCH={epoch}")
    with tempfile.TemporaryDirectory(prefix="ampwatch-release-") as scratch:
        first, second = Path(scratch, "a"), Path(scratch, "somewhere", "else")
        built = build(export(first / "source"), first / "dist", epoch)
        # A clock, umask and order of sets of their own: what depends on one of them differs.
        other = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
        again = build(export(second / "source"), second / "dist", epoch, other, umask=0o077)
        check_same(built, again)
        wheel, sdist = sorted(built, key=lambda path: path.suffix != ".whl")
        print("==> Building the wheel once more, from the sdist")
        check_same(
            [wheel],
            build(
                _unpack(sdist, Path(scratch, "from")), Path(scratch, "third"), epoch, only="wheel"
            ),
        )
        names = zipfile.ZipFile(wheel).namelist()
        check_wheel(names, expected_in_wheel(first / "source"))
        check_sdist(sdist)
        check_metadata(wheel)
        needed = needed_by(wheel)
        Path(scratch).chmod(0o755)
        for number, python in enumerate(pythons):
            print(f"==> Trying {wheel.name} {try_out(wheel, needed, python, first / str(number))}")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for path in built:
            shutil.copy(path, out)
        bill = sbom(tools, wheel, needed, epoch, Path(scratch))
        (out / SBOM).write_text(bill, encoding="utf-8")
        (out / NOTES).write_text(notes, encoding="utf-8")
    sums = write_sums(out)
    print(
        "".join(f"    {line}\n" for line in sums.read_text(encoding="utf-8").splitlines()), end=""
    )
    if key is None:
        print(
            f"==> Nothing is signed, nothing is published. --sign KEY would sign {sums.name}, and with it the files it names"
        )
    else:
        print(f"==> Signed: {sign(sums, key)}. Nothing is published")


def notes_of(changelog: str, version: str) -> str:
    """Return what the changelog says of the version that ``version.py`` names.

    Raises:
        ReleaseError: If it has no heading with a date for it.
    """
    (number,) = re.findall(r'__version__ = "(.+)"', version)
    heading = rf"^## {re.escape(number)} - \d{{4}}-\d\d-\d\d$"
    match = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        msg = f"expected a heading '## {number} - YYYY-MM-DD' in CHANGELOG.md, got none; date it"
        raise ReleaseError(msg)
    return f"# ampwatch {number}\n{match[1]}"


def export(to: Path) -> Path:
    """Write what is committed to a new directory."""
    to.mkdir(parents=True)
    archive = to.parent / "source.tar"
    _run("git", "archive", "--format=tar", "-o", str(archive), "HEAD", cwd=ROOT)
    with tarfile.open(archive) as tar:
        _extract(tar, to)
    return to


def build(
    source: Path,
    out: Path,
    epoch: str,
    environ: Mapping[str, str] | None = None,
    *,
    umask: int = 0o022,
    only: str = "",
) -> list[Path]:
    """Build the wheel and the sdist of a directory.

    Args:
        source: The directory.
        out: Where they go.
        epoch: Seconds that stand for the time of every file.
        environ: Variables over those of this process.
        umask: That of the build.
        only: A target of hatchling, instead of both.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    command += ["-t", only] if only else ["-t", "wheel", "-t", "sdist"]
    variables = {"SOURCE_DATE_EPOCH": epoch, "PYTHONPATH": "", **(environ or {})}
    _run(*command, cwd=source, environ=variables, umask=umask)
    return sorted(out.iterdir())


def check_same(first: Iterable[Path], second: Iterable[Path]) -> None:
    """Compare two builds, byte for byte.

    Raises:
        ReleaseError: If they differ, with the members that do.
    """
    for a, b in zip(sorted(first), sorted(second), strict=True):
        if a.name != b.name:
            msg = f"expected two builds of the same names, got {a.name} and {b.name}"
            raise ReleaseError(msg)
        if a.read_bytes() != b.read_bytes():
            one, other = _members(a), _members(b)
            differ = sorted(n for n in one.keys() | other.keys() if one.get(n) != other.get(n))
            where = (
                f"they differ in {', '.join(differ[:5])}"
                if differ
                else "what is in them is the same, but not the order, the times or the modes"
            )
            msg = f"expected two builds of {a.name} to be the same bytes, got others; {where}"
            raise ReleaseError(msg)


def _members(path: Path) -> dict[str, bytes]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as tar:
        files = ((m.name, tar.extractfile(m)) for m in tar.getmembers())
        return {name: file.read() for name, file in files if file}


def expected_in_wheel(source: Path) -> set[str]:
    """Return what a wheel of ``source`` has to hold: the package, and what stands beside it and is shipped."""
    shipped = dict(
        re.findall(
            r'^"(\S+)" = "(ampwatch/_shipped/\S+)"$',
            (source / "pyproject.toml").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    places = {
        source / "ampwatch": Path("ampwatch"),
        **{source / a: Path(b) for a, b in shipped.items()},
    }
    names = set()
    for place, within in places.items():
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                names.add((within / path.relative_to(place)).as_posix())
    return names


def check_wheel(names: Iterable[str], expected: set[str]) -> None:
    """Compare what a wheel holds with what it has to.

    Raises:
        ReleaseError: If something is missing, or too much.
    """
    got = {name for name in names if ".dist-info/" not in name}
    missing, more = sorted({*expected, str(MODULE)} - got), sorted(got - expected)
    more += sorted(name for name in got & expected if NEVER_SHIPPED.search(name))
    if missing or more:
        msg = f"expected the wheel to hold the package and what pyproject.toml ships, and no tests; missing: {_few(missing)}; too much: {_few(more)}"
        raise ReleaseError(msg)


def check_sdist(sdist: Path) -> None:
    """Look for what does not belong into a source distribution.

    Raises:
        ReleaseError: If there is a link, or something that leads out of it, or nothing to build from.
    """
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
    strange = [
        m.name for m in members if not (m.isfile() or m.isdir()) or ".." in Path(m.name).parts
    ]
    top = sdist.name.removesuffix(".tar.gz")
    needed = {
        f"{top}/{name}"
        for name in ("pyproject.toml", "LICENSE", "README.md", "PKG-INFO", "constraints-dev.txt")
    }
    missing = sorted(needed - {m.name for m in members})
    if strange or missing:
        msg = f"expected an sdist of plain files that can be built; missing: {_few(missing)}; strange: {_few(strange)}"
        raise ReleaseError(msg)


def check_metadata(wheel: Path) -> None:
    """Check the metadata of a wheel as an index does that it is handed in to.

    Raises:
        ReleaseError: If an index would refuse it.
    """
    from packaging.metadata import ExceptionGroup, Metadata  # noqa: PLC0415 - needed here alone

    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        content = archive.read(name)
    try:
        Metadata.from_email(content, validate=True)
    except ExceptionGroup as group:
        msg = f"expected metadata that an index takes, got: {'; '.join(map(str, group.exceptions))}"
        raise ReleaseError(msg) from None
    if not BytesParser().parsebytes(content).get_payload():
        msg = "expected the README in the metadata of the wheel, got none"
        raise ReleaseError(msg)


def try_out(wheel: Path, needed: str, python: str, place: Path) -> str:
    """Install a wheel where nothing else of ampwatch is, and use it: to train, if ``python`` has PyTorch.

    What it needs is fetched by its hashes. All else is done without a network, with nothing but the
    environment on the PATH, and as a user who owns nothing but the directory.

    Args:
        wheel: The wheel.
        needed: What it brings along, pinned with hashes.
        python: The interpreter, whose PyTorch is lent to the environment.
        place: Directory that is made.

    Returns:
        With what it was tried, and how.

    Raises:
        ReleaseError: If it does not work there.
    """
    place.mkdir()
    cache = place / "cache"
    (place / "needed.txt").write_text(needed, encoding="utf-8")
    fetch = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes")
    _run(python, *fetch, "--no-deps", "-d", str(cache), "-r", str(place / "needed.txt"))
    shutil.copy(wheel, cache)
    number, executable, *torch = _run(python, "-c", WHICH, cwd=place).splitlines()
    alone, how = _alone(place)
    program, own = str(place / "bin" / "ampwatch"), str(place / "bin" / "python")
    _run(*alone, executable, "-m", "venv", str(place), cwd=place)
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--only-binary=:all:")
    wanted = f"ampwatch[{','.join(EXTRAS)}]"
    _run(*alone, own, *install, "--find-links", str(cache), wanted, cwd=place)
    said = _run(*alone, program, "--version", cwd=place).split()
    if said != ["ampwatch", wheel.name.split("-")[1]]:
        msg = f"expected ampwatch --version to say {wheel.name.split('-')[1]}, got {said}"
        raise ReleaseError(msg)
    _run(*alone, program, "explain", "scale_collapse", cwd=place)
    _run(*alone, own, "-c", IMPORTS, cwd=place)
    if torch:
        purelib = _run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        # Behind the environment's own packages, and as a plain directory, so that no .pth file in it is
        # read: the one of an editable install would lead back to this checkout.
        Path(purelib, "lent.pth").write_text(torch[1])
        _run(*alone, own, "-c", SMOKE, cwd=place)
        _run(*alone, program, "report", "tried.json", "--check", "skips<50%, findings=1", cwd=place)
    return f"with Python {number} and {f'torch {torch[0]}' if torch else 'no PyTorch'}{how}"


def _pythons() -> list[str]:
    """Return the Python that runs this, and those of ``PYTHONS`` that can be run."""
    found = [sys.executable]
    for name in PYTHONS:
        with contextlib.suppress(ReleaseError):
            _run(name, "-c", "import venv, ensurepip")
            found.append(name)
    return found


def _alone(place: Path) -> tuple[list[str], str]:
    """Return what stands before a command that has to do with ``place`` alone, and what that cannot do."""
    is_root, how = os.geteuid() == 0, ""
    apart = ["unshare", "--net"] if is_root else ["unshare", "--map-current-user", "--net"]
    try:
        _run(*apart, "true")
    except ReleaseError:
        apart, how = [], ", with a network, which could not be taken away"
    if is_root:
        for path in (place, *place.rglob("*")):
            os.chown(path, int(NOBODY), int(NOBODY))
        # A Python below /root can be read, as if it were anywhere else, and nothing written.
        caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        apart += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *caps]
    runtime = f"AMPWATCH_RUNTIME_DIR={place}/run"
    return [*apart, "env", "-i", f"PATH={place}/bin", f"HOME={place}", runtime], how


def pins(lock: str) -> dict[str, list[str]]:
    """Return the blocks of a file with hashes, by name of the package."""
    blocks: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)):
        if match := re.match(r"([A-Za-z0-9._-]+)==", block.strip()):
            blocks.setdefault(canonicalize_name(match[1]), []).append(block.strip())
    return blocks


def brought_along(wanted: Iterable[str], lock: Mapping[str, list[str]]) -> list[str]:
    """Return the blocks of all packages that an installation of ``wanted`` brings along, extras included."""
    found: set[str] = set()
    queue = [Requirement(text) for text in wanted]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        if name not in lock:
            msg = f"expected {name} in {LOCK.name}, got no such line; run: make lock"
            raise ReleaseError(msg)
        found.add(name)
        for text in importlib.metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)
            ):
                queue.append(needed)
    return [block for name in sorted(found) for block in lock[name]]


def needed_by(wheel: Path) -> str:
    """Return what an installation of a wheel brings along, extras ``EXTRAS`` included, as a file of pins."""
    requirements = map(Requirement, _metadata(wheel).get_all("Requires-Dist", []))
    wanted = [
        str(r).partition(";")[0]
        for r in requirements
        if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *EXTRAS))
    ]
    return "\n".join(brought_along(wanted, pins(LOCK.read_text(encoding="utf-8")))) + "\n"


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def sbom(tools: Path, wheel: Path, needed: str, epoch: str, scratch: Path) -> str:
    """Return the bill of materials of a wheel, in CycloneDX's JSON: what an installation brings along, with hashes.

    The same wheel has the same bill: its number is made from the wheel's hash, its time is that of the commit.
    """
    listed = scratch / "requirements.txt"
    listed.write_text(needed, encoding="utf-8")
    command = [
        str(tools / "cyclonedx-py"),
        "requirements",
        str(listed),
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-reproducible",
        "--of",
        "JSON",
    ]
    bill = json.loads(_run(*command))
    bill["metadata"]["component"] |= {
        "version": _metadata(wheel)["Version"],
        "hashes": [{"alg": "SHA-256", "content": _sha256(wheel)}],
    }
    bill["metadata"]["timestamp"] = _run(
        "date", "-u", "-d", f"@{epoch}", "+%Y-%m-%dT%H:%M:%SZ"
    ).strip()
    for component in bill["components"]:
        # The tool says which line of a file it was read from: of a temporary one, which nobody will find.
        component["description"] = f"pinned in {LOCK.name}"
    return json.dumps(bill, indent=2, sort_keys=True) + "\n"


def write_sums(out: Path) -> Path:
    """Write the SHA-256 of every file in ``out``, as ``sha256sum --check`` reads it."""
    lines = [
        f"{_sha256(path)}  {path.name}\n" for path in sorted(out.iterdir()) if path.name != SUMS
    ]
    (out / SUMS).write_text("".join(lines), encoding="utf-8")
    return out / SUMS


def sign(sums: Path, key: Path) -> Path:
    """Sign a file with the key of OpenSSH, and check that the signature holds.

    Raises:
        ReleaseError: If it cannot be signed.
    """
    _run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums))
    signature = sums.with_name(f"{sums.name}.sig")
    _run("ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature), stdin=sums)
    return signature


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _few(names: list[str]) -> str:
    return (
        ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        or "nothing"
    )


def _unpack(sdist: Path, to: Path) -> Path:
    with tarfile.open(sdist) as tar:
        _extract(tar, to)
    return to / sdist.name.removesuffix(".tar.gz")


def _extract(tar: tarfile.TarFile, to: Path) -> None:
    # Releases of Python before 3.10.12 and 3.11.4 have no filters; the archives are our own.
    if hasattr(tarfile, "data_filter"):
        tar.extractall(to, filter="data")
    else:
        tar.extractall(to)  # noqa: S202 - as above


def _run(
    *command: str,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    umask: int = -1,
    stdin: Path | None = None,
) -> str:
    """Return what a program prints.

    Raises:
        ReleaseError: If it fails, with the last lines of what it said.
    """
    try:
        done = subprocess.run(  # noqa: S603 - programs of this file
            command,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
            umask=umask,
            input=stdin.read_text(encoding="utf-8") if stdin else "",
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        msg = f"expected to run {command[0]}, got: {error.strerror}"
        raise ReleaseError(msg) from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        msg = f"expected {' '.join(command)[:200]!r} to succeed, got status {done.returncode}:\n{said}"
        raise ReleaseError(msg)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
