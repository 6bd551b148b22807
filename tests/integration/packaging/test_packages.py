"""The packages that a release publishes: built, checked, and used without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
TIMEOUT_S: Final = 240


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the settings of this process for Python; return its output."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=plain, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it; return both."""
    into = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", into, ROOT, cwd=into)
    (archive,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return archive, wheel


def test_packages_pass_the_checks_of_pypi(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """O8."""
    said = run(sys.executable, "-m", "twine", "check", "--strict", *packages, cwd=tmp_path)
    assert said.count("PASSED") == 2


def test_packages_have_what_they_need_and_nothing_else(packages: tuple[Path, Path]) -> None:
    """O8: the wheel has the package, and the archive also tests, docs and deployment files."""
    archive, wheel = packages
    with zipfile.ZipFile(wheel) as opened:
        tops = {name.split("/")[0] for name in opened.namelist()}
        assert "escapement/py.typed" in opened.namelist()
    kinds = {top if not top.endswith((".dist-info", ".data")) else "metadata" for top in tops}
    assert kinds == {"escapement", "pyspark_escapement", "metadata"}
    with tarfile.open(archive) as opened_archive:
        inside = {Path(*Path(name).parts[1:]) for name in opened_archive.getnames()}
    for path in ("deploy/docker/Dockerfile", "tests/conftest.py", "docs/index.md", "LICENSE"):
        assert Path(path) in inside
    assert not [path for path in inside if path.suffix == ".pyc"]


def test_wheel_alone_runs_the_demo(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """O8: in a new virtual environment, without the checkout and without extras."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, packages[1], cwd=tmp_path)
    where = run(
        programs / "python", "-c", "import escapement; print(escapement.__file__)", cwd=tmp_path
    )
    assert str(tmp_path) in where
    demo = ("demo", "--messages", "500", "--seconds", "3")
    assert "Every promise was kept" in run(programs / "escapement", *demo, cwd=tmp_path)
