"""Pandas' own tests of Parquet and Feather, and Pillow's of JPEG and WebP, in the sandbox.

They come from PyPI. A module in place of pyarrow lets the tests begin that name it, and skips those
that need one of its objects.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from wasm_kernel import ExecutionPolicy, create_sandbox

pytestmark = pytest.mark.soak

BUILD = Path(__file__).parents[2] / "build" / "suites"
PYTEST = ("pytest==9.2.0", "hypothesis==6.131.0")  # newer ones of hypothesis are compiled
PANDAS, PILLOW = "pandas==3.0.6", "pillow==13.0.0"
PILLOW_SHA256 = "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"
PYARROW = """
import pytest
__version__, __path__ = "26.0.1", []
ArrowException = ValueError

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    pytest.skip("needs pyarrow's " + name)
"""
RUN = """
import io, json, os, sys
import pytest, pandas, pandas.compat.pyarrow as versions
for name in dir(versions):
    if name.startswith("pa_version_under"):
        setattr(versions, name, False)

class Log:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], {}, {}

    def pytest_sessionstart(self):  # not before: conftest.py asks whether pandas itself has pyarrow
        sys.path.insert(0, "/suite/stand_ins")

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("/")[2]
        if report.failed:
            self.failed[name] = str(report.longreprtext)[-600:]
        elif report.skipped:
            self.skipped[name] = str(report.longrepr)[-200:]
        elif report.when == "call":
            self.passed.append(name)

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = str(report.longreprtext)[-600:]

def run(files):
    log, shown = Log(), sys.stdout
    options = ["--capture=no", "--import-mode=append", "--assert=plain", "--basetemp=/app/t"]
    options += ["--rootdir=/suite", "-W", "ignore"]
    for plugin in ("cacheprovider", "faulthandler", "threadexception", "unraisableexception"):
        options += ["-p", "no:" + plugin]
    os.chdir("/suite")
    sys.stdout = io.StringIO()
    try:
        pytest.main([*files, *options], plugins=[log])
    finally:
        sys.stdout = shown
    with open("/app/log.json", "w") as file:
        json.dump(vars(log), file)
"""

NO_NETWORK = "reads from a server"
NEEDS_PYARROW = "needs pyarrow itself, in a way that the module in its place does not notice"
OTHER_WORDS = "the error has other words"
ANIMATIONS = "no animated WebP is written"
LOSSLESS = "WebP is written without loss, and in one way"
WHOLE = "tables and pixels are written together, whatever `streamtype` is"
NO_VERSION = "the codec tells no version"
INSIDE = "tests Pillow's own C module"

PANDAS_FAILURES = {
    NO_NETWORK: [
        "test_feather.py::TestFeather::test_http_path",
        "test_parquet.py::TestBasic::test_parquet_read_from_url[pyarrow]",
        "test_parquet.py::TestParquetFastParquet::test_s3_roundtrip",
        *(
            f"test_parquet.py::TestParquetPyArrow::test_s3_roundtrip{each}"
            for each in ("", "_explicit_fs", "_for_dir[partition_col0]", "_for_dir[partition_col1]")
        ),
    ],
    NEEDS_PYARROW: [
        f"test_parquet.py::TestParquetPyArrow::test_{each}"
        for each in (
            "infer_string_large_string_type",
            "partition_cols_supported",
            "partition_cols_string",
            "pyarrow_backed_string_array[python]",
            "read_dtype_backend_pyarrow_config_index",
            "roundtrip_decimal",
        )
    ],
    OTHER_WORDS: ["test_parquet.py::TestParquetFastParquet::test_invalid_filesystem"],
}
JPEG, WEBP = "test_file_jpeg.py::TestFileJpeg::test_", "test_file_webp.py::TestFileWebp::test_"
ANIMATED = "test_file_webp_animated.py::test_"
PILLOW_FAILURES = {
    OTHER_WORDS: [*(f"{JPEG}zero[size{n}]" for n in range(3)), f"{JPEG}wider_than_tile"],
    NO_VERSION: [f"{JPEG}sanity", f"{WEBP}version"],
    WHOLE: [f"{JPEG}separate_tables"],
    LOSSLESS: [f"{WEBP}write_method"],
    ANIMATIONS: [
        *(f"{WEBP}{each}" for each in ("save_all", "background_from_gif", "duration")),
        *(f"{ANIMATED}write_animation_{each}" for each in ("L", "RGB")),
        *(f"{ANIMATED}{each}" for each in ("timestamp_and_duration", "float_duration", "seeking")),
        f"{ANIMATED}alpha_quality",
        "test_file_webp_metadata.py::test_write_animated_metadata",
    ],
    INSIDE: [
        "test_file_webp.py::TestUnsupportedWebp::test_unsupported",
        *(f"{WEBP}{each}" for each in ("unsupported_image_mode", "WebPEncode_with_invalid_args")),
        f"{WEBP}WebPAnimDecoder_with_invalid_args",
    ],
}


def fetched(*arguments: str) -> None:
    """Runs pip on this machine."""
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet"], check=True)


@pytest.fixture(scope="module")
def suite() -> Path:
    """A folder that the sandbox mounts, with pytest and the tests."""
    folder = BUILD / "formats"
    if (folder / "done").exists():
        return folder
    fetched("install", "--upgrade", "--target", str(folder / "lib"), *PYTEST)
    (folder / "stand_ins").mkdir(exist_ok=True)
    (folder / "stand_ins" / "pyarrow.py").write_text(PYARROW)
    fetched("download", "--no-deps", "--dest", str(BUILD), "--only-binary=:all:", PANDAS)
    (wheel,) = BUILD.glob(f"{PANDAS.replace('==', '-')}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("conftest.py", "tests/io/test_parquet.py", "tests/io/test_feather.py"):
            path = folder / "pandas_tests" / Path(name).name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(archive.read(f"pandas/{name}"))
    pinned = BUILD / "pillow.txt"
    pinned.write_text(f"{PILLOW} --hash=sha256:{PILLOW_SHA256}\n")
    fetched("download", "--no-deps", "--no-binary=pillow", f"--dest={BUILD}", "-r", str(pinned))
    source = PILLOW.replace("==", "-")
    with tarfile.open(BUILD / f"{source}.tar.gz") as archive:
        inner = [each for each in archive if each.name.startswith(f"{source}/Tests/")]
        archive.extractall(folder, members=inner, filter="data")
    (folder / source / "Tests").rename(folder / "Tests")
    (folder / "done").touch()
    return folder


def failures(suite: Path, tmp_path: Path, files: list[str], least: int) -> Mapping[str, str]:
    """Returns the texts of failed tests, by name; fails if fewer than `least` others passed."""
    policy = ExecutionPolicy(cell_timeout=1800, memory_bytes=3 << 30, mounts=[f"{suite}:/suite"])
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        code = f"import sys; sys.path += ['/suite/lib', '/suite']\n{RUN}\nrun({files!r})"
        result = sandbox.execute(code)
        assert result.error is None, result.error
    log = json.loads((tmp_path / "app" / "log.json").read_text())
    assert len(log["passed"]) >= least
    failed: dict[str, str] = log["failed"]
    return failed


def known(reasons: Mapping[str, list[str]]) -> set[str]:
    """Returns the names of the tests that may fail."""
    return {name for names in reasons.values() for name in names}


def test_pandas_tests_of_parquet_and_feather_pass(suite: Path, tmp_path: Path) -> None:
    files = ["pandas_tests/test_parquet.py", "pandas_tests/test_feather.py"]
    failed = failures(suite, tmp_path, files, least=70)
    assert set(failed) == known(PANDAS_FAILURES), failed


def test_pillows_tests_of_jpeg_and_webp_pass(suite: Path, tmp_path: Path) -> None:
    kinds = ("jpeg", "webp", "webp_alpha", "webp_animated", "webp_lossless", "webp_metadata")
    files = [f"Tests/test_file_{each}.py" for each in kinds]
    failed = failures(suite, tmp_path, files, least=105)
    assert set(failed) == known(PILLOW_FAILURES), failed
