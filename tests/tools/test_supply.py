"""What CI installs, what a release is made of, and what an audit may say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import tree
from tests.report.links import links
from tests.services import require
from tools import audit
from tools.readme import FILES, PAGES
from tools.release import (
    LOCK,
    SUMS,
    ReleaseError,
    brought_along,
    build,
    check_metadata,
    check_same,
    check_sdist,
    check_wheel,
    expected_in_wheel,
    notes_of,
    pins,
    sign,
    write_sums,
)

ROOT = Path(__file__).parents[2]
LOCKS = (
    "constraints-dev.txt",
    "constraints-demo.txt",
    "constraints-grafana.txt",
    "constraints-release.txt",
    "constraints-site.txt",
    "tests/frameworks/constraints.txt",
    "tests/frameworks/requirements-loggers.txt",
    "tests/frameworks/requirements-notebook.txt",
    ".ci/constraints.txt",
)
EPOCH = "1700000000"


def requirements(path: str) -> list[tuple[Requirement, list[str]]]:
    """Return what a file with hashes pins, with the hashes."""
    blocks = pins((ROOT / path).read_text(encoding="utf-8")).values()
    found = []
    for block in (block for each in blocks for block in each):
        line, *hashes = [part.strip() for part in block.split("\\\n")]
        found.append((Requirement(line), hashes))
    return found


@pytest.mark.parametrize("path", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_index_is_named(path: str) -> None:
    """A file that somebody has exchanged at the index is refused by pip."""
    found = requirements(path)

    assert found
    for requirement, hashes in found:
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "://" not in text
    assert re.search(r"^-", text, re.MULTILINE) is None


@pytest.mark.parametrize("path", LOCKS)
def test_a_version_with_hashes_is_that_of_constraints_txt(path: str) -> None:
    """Versions are changed in one place; `make lock` follows."""
    plain: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            plain.setdefault(canonicalize_name(requirement.name), set()).add(
                str(requirement.specifier)
            )
    for requirement, _ in requirements(path):
        allowed = plain.get(canonicalize_name(requirement.name), {str(requirement.specifier)})
        assert str(requirement.specifier) in allowed, requirement


@pytest.mark.parametrize(
    ("path", "extra"), [(LOCKS[0], "dev"), (LOCKS[0], "ui"), (LOCKS[1], "ui"), (LOCKS[0], "web"), (LOCKS[2], "grafana"), (LOCKS[3], "release")]
)  # fmt: skip
def test_what_an_extra_names_is_there(path: str, extra: str) -> None:
    """`make lock` was run after pyproject.toml was changed."""
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["optional-dependencies"][extra] + project["dependencies"]
    names = {canonicalize_name(Requirement(each).name) for each in listed} - {"ampwatch"}
    there = {canonicalize_name(r.name) for r, _ in requirements(path)}

    assert names
    assert names <= there


def test_nothing_of_pytorchs_cuda_is_locked() -> None:
    """Which build there is, is up to the machine; a lock with CUDA would bring gigabytes to all."""
    for path in LOCKS:
        names = {canonicalize_name(r.name) for r, _ in requirements(path)}
        assert {n for n in names if n == "torch" or n.startswith(("nvidia-cu", "cuda-"))} == set()


def test_ci_installs_nothing_without_hashes_but_pytorch_and_this_checkout() -> None:
    """Each call of pip that CI makes is one of three. It makes no .venv-peers."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    before, _, after = makefile.partition("$(PEERS_INSTALLED): ")
    makefile = before + after.partition("\n\n")[2]
    makefile = makefile.partition("gpu-packages: ")[0] + makefile.partition(".PHONY: clean")[2]
    calls = re.findall(r"\$\((?:LOCKED|PIP)\).*|-m pip .*", makefile)
    calls += re.findall(r"-m pip .*", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    kinds = (
        r"\$\(LOCKED\) -r \S+",
        r"\$\(PIP\) -c constraints\.txt torch",
        r"\$\(PIP\) --no-deps --no-build-isolation -e \.",
        r"-m pip .*--require-hashes --no-deps -r \S+",
        r"-m pip --disable-pip-version-check install",  # PIP itself
        r"\$\(PIP\) --require-hashes --no-deps",  # LOCKED itself
        r"-m pip .* --no-deps -r \$<",  # the frameworks that are tried by hand, and not in CI
    )

    assert len(calls) >= 8
    assert [call for call in calls if not any(re.fullmatch(kind, call) for kind in kinds)] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"), EPOCH)


@pytest.mark.nightly
def test_two_builds_are_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """Wherever, whenever and under whatever umask they are made."""
    other = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"}
    again = build(ROOT, tmp_path / "dist", EPOCH, other, umask=0o077)

    check_same(built, again)
    assert [path.suffix for path in built] == [".whl", ".gz"]


@pytest.mark.nightly
def test_the_wheel_holds_the_package_and_what_it_ships(built: list[Path]) -> None:
    """C, page, dashboards, deployments and pages of kinds; no test, and nothing else."""
    names = zipfile.ZipFile(built[0]).namelist()
    plain = {n for n in names if "__pycache__" not in n}
    expected = {n for n in expected_in_wheel(ROOT) if "__pycache__" not in n}

    check_wheel(plain, expected)
    assert {n.rpartition(".")[2] for n in names} >= {"c", "js", "css", "html", "json", "yml", "md"}
    assert not {n for n in names if n.startswith("tests/")}
    check_sdist(built[1])
    check_metadata(built[0])


@pytest.mark.nightly
def test_an_index_shows_a_readme_whose_links_lead_somewhere(built: list[Path]) -> None:
    """Nothing of it is relative: an index has neither the pages nor the pictures."""
    archive = zipfile.ZipFile(built[0])
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))).decode()
    found = links(metadata.split("\n\n", 1)[1])

    assert len(found) > 30
    assert [link for link in found if "://" not in link] == []
    assert f"{FILES}docs/images/page-collapsed.png" in found
    assert f"{PAGES}docs/using.md" in found


@pytest.mark.nightly
def test_the_installed_package_deploys_the_same_tree(built: list[Path], tmp_path: Path) -> None:
    """File for file as the checkout does."""
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(tmp_path / "site")
    code = "import json; from ampwatch.operate.deploy import options, tree; print(json.dumps([tree.__file__, tree.tree(options.DeployOptions())]))"
    paths = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=paths, check=True, capture_output=True)  # fmt: skip
    source, files = json.loads(done.stdout)

    assert source.startswith(str(tmp_path))
    assert files == tree(DeployOptions())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tests/test_x.py"}, r"too much: tests/test_x\.py"),
        ({"ampwatch/x.py"}, r"too much: ampwatch/x\.py"),
    ],
)
def test_a_wheel_with_more_is_refused(change: set[str], words: str) -> None:
    """A file that git does not know, or a directory that is not shipped."""
    expected = {"ampwatch/a.py"}
    with pytest.raises(ReleaseError, match=words):
        check_wheel(expected | change, expected)
    with pytest.raises(ReleaseError, match=r"missing: ampwatch/a\.py, .*/native/_core\.abi3\.so;"):
        check_wheel([], expected)


def test_a_release_is_dated_and_has_what_the_changelog_says_of_it_alone() -> None:
    """No more than one heading; a version without one is refused."""
    changelog = "# Changelog\n\n## 0.2.0 - 2026-01-31\n\n- New\n\n## 0.1.0 - 2025-12-31\n\n- Old\n"

    assert notes_of(changelog, '__version__ = "0.2.0"\n') == "# ampwatch 0.2.0\n\n- New\n\n"
    assert notes_of(changelog, '__version__ = "0.1.0"\n') == "# ampwatch 0.1.0\n\n- Old\n"
    with pytest.raises(ReleaseError, match=r"'## 0\.3\.0 - YYYY-MM-DD' in CHANGELOG\.md, got none"):
        notes_of(changelog, '__version__ = "0.3.0"\n')


def test_a_link_in_an_sdist_is_refused(tmp_path: Path) -> None:
    """It could lead anywhere on the machine that unpacks it."""
    path = tmp_path / "ampwatch-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("ampwatch-1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)

    with pytest.raises(ReleaseError, match=r"strange: ampwatch-1/link"):
        check_sdist(path)


def test_the_bill_has_what_the_wheel_brings_along_and_no_tool() -> None:
    """Followed through the metadata of what is installed."""
    blocks = brought_along(["jinja2", "rich"], pins(LOCK.read_text(encoding="utf-8")))
    names = {block.partition("==")[0] for block in blocks}

    assert names == {"jinja2", "markupsafe", "rich", "markdown-it-py", "mdurl", "pygments"}  # fmt: skip


def test_sums_are_read_by_sha256sum_and_a_signature_holds_for_them_alone(tmp_path: Path) -> None:
    """With a key that is thrown away, and the commands that CONTRIBUTING.md gives."""
    require("ssh-keygen")
    key, out = tmp_path / "key", tmp_path / "out"
    out.mkdir()
    (out / "a.whl").write_bytes(b"wheel")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sums = write_sums(out)
    signature = sign(sums, key)
    signers = tmp_path / "signers"
    signers.write_text(f"releases {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "releases", "-n", "ampwatch-release", "-s", signature]  # fmt: skip

    def holds(content: bytes) -> bool:
        return subprocess.run(verify, input=content, capture_output=True, check=False).returncode == 0  # fmt: skip

    assert holds(sums.read_bytes())
    assert not holds(sums.read_bytes() + b"0  b.whl\n")
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=out, check=True)
    (out / "a.whl").write_bytes(b"other")
    assert subprocess.run(["sha256sum", "--check", SUMS], cwd=out, check=False).returncode == 1


def answer(name: str, *vulns: str) -> dict[str, object]:
    made = [{"id": v, "aliases": [], "fix_versions": ["9"]} for v in vulns]
    return {"name": name, "version": "1", "vulns": made}


def test_an_audit_that_was_not_answered_does_not_say_that_nothing_is_known() -> None:
    """Neither for one of many, nor where nobody answers at all."""
    asked = {("a", "1"), ("b", "1")}
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI"}

    assert audit.verdict(asked, [answer("a"), answer("b")], [])[0] == 0
    for answers, problems in (([answer("a"), skipped], []), ([], ["Connection refused"])):
        status, text = audit.verdict(asked, answers, problems)
        assert status == 2
        assert "could not be asked about" in text
        assert "No vulnerability" not in text


def test_what_an_audit_finds_is_named_with_the_release_that_mends_it() -> None:
    """And it is found also where something else was not answered."""
    asked = {("a", "1"), ("b", "1")}
    status, text = audit.verdict(asked, [answer("a", "PYSEC-1"), answer("b")], [])

    assert status == 1
    assert "a 1: PYSEC-1 , fixed in 9" in text
    assert "PYSEC-1" in audit.verdict(asked, [answer("a", "PYSEC-1")], ["no answer"])[1]


def test_every_pinned_version_is_asked_about_whatever_python_it_is_for() -> None:
    """pip-audit takes one version of a name at a time."""
    asked = audit.pinned(['A_b==1; python_version < "3.11"\na-b==2 \\\n  --hash=x\n# c==3\n'])

    assert asked == {("a-b", "1"), ("a-b", "2")}
    assert audit.apart(asked) == [[("a-b", "1")], [("a-b", "2")]]
