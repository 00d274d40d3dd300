"""The command line: the kernelspec in the picker, and the doctor's findings."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec

from tests.faces import PATIENCE, completed, raising
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import FUEL, UNCHECKED, Flavour
from wasm_kernel.frontends.cli import doctor, kernelspecs
from wasm_kernel.frontends.cli import main as cli
from wasm_kernel.frontends.cli import warm as warming
from wasm_kernel.frontends.jupyter.provisioner import ListeningProvisioner
from wasm_kernel.guests.base import GuestLanguage, languages
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.policy import RuntimeType


def spec_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "kernel.json").read_text())
    return found


def test_the_shipped_kernelspec_names_no_interpreter_of_its_own() -> None:
    spec = spec_of(kernelspecs.source(RuntimeType.PYTHON))
    assert spec["argv"] == ["python", "-m", "wasm_kernel", "-f", "{connection_file}"]
    assert spec["interrupt_mode"] == "message"
    assert spec["env"] == {"PYTHONSAFEPATH": "1"}  # keeps the notebook's folder off the import path
    assert "'supported_encryption': ['curve']" in str(spec["metadata"])


def test_a_module_beside_the_notebook_is_not_imported_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "traitlets.py").write_text("raise SystemExit('ran outside the sandbox')\n")
    root = str(Path(__file__).resolve().parents[2])
    command = [
        sys.executable,
        "-m",
        "wasm_kernel",
        "--WasmKernel.memory_bytes=1",
        "-f",
        "none.json",
    ]
    ran = completed(command, cwd=tmp_path, env={"PYTHONPATH": root})
    assert "WasmKernel.memory_bytes" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("runtime", RuntimeType)
def test_install_copies_no_kernelspec_that_uninstall_removes(runtime: RuntimeType) -> None:
    """Formerly, no `install` worked after `uninstall`, or after one into a relative prefix."""
    assert kernelspecs.source(runtime).is_relative_to(Path(kernelspecs.__file__).parents[2])
    assert spec_of(kernelspecs.source(runtime))["language"] == runtime.value


async def test_a_port_that_takes_no_connection_blocks_no_server() -> None:
    """Formerly, a Jupyter server did nothing for two minutes, and did not end either."""
    provisioner = ListeningProvisioner(kernel_id="k", kernel_spec=KernelSpec())
    with (
        closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as full,
        closing(socket.create_connection(full.getsockname())),
    ):
        provisioner.connection_info = {
            "transport": "tcp",
            "ip": "127.0.0.1",
            "control_port": full.getsockname()[1],
        }
        async with asyncio.timeout(PATIENCE):
            await provisioner.launch_kernel(["sleep", "60"])
        await provisioner.kill()
        await provisioner.wait()


def test_install_names_this_interpreter(tmp_path: Path) -> None:
    options = ["--prefix", str(tmp_path), "--name", "mine", "--display-name", "Mine"]
    assert cli.main(["install", *options, "--env", "A", "1"]) == 0
    spec = spec_of(tmp_path / "share" / "jupyter" / "kernels" / "mine")
    assert isinstance(spec["argv"], list)
    assert spec["argv"][0] == sys.executable
    assert spec["display_name"] == "Mine"
    assert spec["env"] == {"PYTHONSAFEPATH": "1", "A": "1"}


def test_a_lack_is_told_and_a_warm_machine_found_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["install", "--prefix", "/proc/nowhere"]) == 1
    told = "kernels can't be written (No such file or directory). Nothing was installed. Try"
    assert told in capsys.readouterr().err
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "the base image with pandas and matplotlib is built" in told
    assert "earlier versions of files are c" in told
    for codec in ("reads JPEG", "writes JPEG", "reads WebP", "writes WebP"):
        assert f"the codec that {codec} " in told
    assert "the codec of Parquet " in told


def test_install_names_our_provisioner_where_jupyter_has_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jupyter hides a kernel whose provisioner it does not know."""
    shared = kernelspecs.install(kernelspecs.KernelspecPlace(prefix=str(tmp_path)), name="shared")
    assert "kernel_provisioner" not in str(spec_of(shared))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert cli.main(["install", "--sys-prefix"]) == 0
    metadata = spec_of(shared.parent / "wasm-python")["metadata"]
    assert isinstance(metadata, dict)
    name = metadata["kernel_provisioner"]["provisioner_name"]
    assert entry_points(group="jupyter_client.kernel_provisioners", name=name)


def test_install_names_a_cache_that_no_other_user_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["install", "--prefix", str(tmp_path), "--cache"]
    assert cli.main([*options, "kept"]) == 0
    assert f"WASM_KERNEL_CACHE={tmp_path / 'kept'} wasm-kernel warm" in capsys.readouterr().out
    env = spec_of(tmp_path / "share" / "jupyter" / "kernels" / "wasm-python")["env"]
    assert env == {"PYTHONSAFEPATH": "1", "WASM_KERNEL_CACHE": str(tmp_path / "kept")}
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert cli.main([*options, "open", "--name", "other"]) == 1
    assert "can be written by other users" in capsys.readouterr().err
    assert not (tmp_path / "share" / "jupyter" / "kernels" / "other").exists()


def test_uninstall_removes_what_install_made_and_leaves_other_kernels_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = kernelspecs.install(kernelspecs.KernelspecPlace(prefix=str(tmp_path)))
    other = made.with_name("other")
    other.mkdir()
    (other / "kernel.json").write_text('{"argv": ["x"]}')
    assert cli.main(["uninstall", "--prefix", str(tmp_path)]) == 0
    assert not made.exists()
    assert cli.main(["uninstall", "--prefix", str(tmp_path), "--name", "other"]) == 1
    assert other.exists()
    assert "Nothing was removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "flavour", "which"),
    [([], UNCHECKED, "sessions start"), (["--fuel"], FUEL, "with a fuel budget start")],
)
def test_warming_prepares_the_code_of_all_sessions_or_of_those_with_fuel(
    options: list[str],
    flavour: Flavour,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[tuple[str, Flavour]] = []

    def prepare(language: GuestLanguage, flavour: Flavour, progress: object) -> None:
        made.append((language.name, flavour))

    monkeypatch.setattr(warming, "prepare_on_own_thread", prepare)
    assert cli.main(["warm", *options]) == 0
    assert made == [("python", flavour), ("javascript", flavour), ("shell", flavour)]
    assert f"{which} at once" in capsys.readouterr().out


def test_warming_again_says_that_all_is_ready_and_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("XDG_STATE_HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert cli.main(["warm"]) == 0
    assert capsys.readouterr().out.startswith("ready:")
    assert not list((tmp_path / "TMPDIR").iterdir())
    assert not [path for path in tmp_path.rglob("*/private/*") if path.is_dir()]


def test_an_archive_carries_every_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, set[str]] = {}

    def write(paths: Iterable[Path], target: Path) -> str:
        found["written"] = {path.name for path in paths}
        target.touch()
        return "0" * 64

    def read(source: Path, sha256: str, cache: object, known: Mapping[str, object]) -> list[str]:
        found["known"] = {*known}
        return []

    monkeypatch.setattr(warming, "write_archive", write)
    monkeypatch.setattr(warming, "read_archive", read)
    assert cli.main(["warm", "--export", str(tmp_path / "guests")]) == 0
    assert cli.main(["warm", "--import", str(tmp_path / "guests"), "--sha256", "0" * 64]) == 0
    images = {language.prepared.image_name for language in languages()}
    assert images < found["written"] < found["known"]


def test_a_cache_that_can_not_be_written_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Formerly, both commands ended with the system's words, and the doctor named nothing else."""

    def run(command: str, folder: str) -> tuple[int, str]:
        words = [sys.executable, "-m", "wasm_kernel.frontends.cli.main", command]
        done = completed(words, env={**os.environ, "WASM_KERNEL_CACHE": folder})
        return done.returncode, done.stdout + done.stderr

    nowhere = "/proc/nowhere/cache"
    status, said = run("warm", nowhere)
    assert (status, said.count("\n")) == (1, 1)
    assert "cache folder can't be made (No such file or directory). Name another with" in said
    monkeypatch.setenv("WASM_KERNEL_CACHE", str(tmp_path))
    assert "private to you" in [*PythonLanguage().examine()][1].text
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is read-only" in [*PythonLanguage().examine()][1].text
    full = OSError(errno.ENOSPC, "No space left on device", "/secret/path")
    monkeypatch.setattr(Cache, "_write", raising(full))
    for folder, why in (
        (nowhere, "can't be made (No such file or directory). Name another with"),
        (str(tmp_path / "new"), "written to (No space left on device). Free some 500 MB there,"),
    ):
        monkeypatch.setenv("WASM_KERNEL_CACHE", folder)
        (found,) = PythonLanguage().examine()
        assert (found.mark, why in found.text) == ("broken", True)
    monkeypatch.setattr(os, "lstat", raising(PermissionError(errno.EACCES, "Permission denied")))
    (found,) = PythonLanguage().examine()
    assert "can't be read (Permission denied). Name another with WASM_KERNEL" in found.text


def test_the_doctor_goes_on_after_a_cache_that_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = PermissionError(errno.EACCES, "Permission denied", "/secret/path")
    monkeypatch.setattr(PythonLanguage, "examine", raising(locked))
    findings = [*doctor.examine(tmp_path)]
    (found,) = [each for each in findings if each.mark == "broken"]
    assert "can't be read (Permission denied): name another with WASM_KERNEL_CACHE" in found.text
    assert any("private state of sessions" in each.text for each in findings)


def test_pages_of_another_size_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.sysconf
    large = {"SC_PAGE_SIZE": 65_536}
    monkeypatch.setattr(os, "sysconf", lambda name: large.get(name) or real(name))
    assert cli.main(["doctor"]) == 1
    assert "broken  This machine's memory has pages of 64 KiB" in capsys.readouterr().out
    assert cli.main(["warm"]) == 1
    assert "none can run here. Nothing was changed." in capsys.readouterr().err


BROKEN = {
    "c.WasmKernel.cell_timout = 5": "There is no setting WasmKernel.cell_timout. Is cell_timeout",
    "c.WasmKernel.cell_timeout = -1": "must be a finite number of seconds above 0, not -1.0",
    "c.WasmKernel.cell_timeout = (": "SyntaxError: '(' was never closed",
    "import nothing_there": "ModuleNotFoundError: No module named 'nothing_there'",
    "raise SystemExit(3)": "SystemExit: 3",
    "c.WasmKernel.mounts = ['/nowhere/x:/data']": "names a host folder for /data that is not there",
}


def test_the_doctor_names_file_and_line_of_a_setting_that_no_kernel_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "jupyter_wasm_kernel_config.py"
    for line, words in BROKEN.items():
        file.write_text(f"# mine\nx = 1\n{line}\ny = 2  # not cell_timeout\n")
        (said,) = [f.text for f in doctor.examine(tmp_path) if "no kernel starts" in f.text]
        assert words in said
        assert "~/jupyter_wasm_kernel_config.py, line 3" in said
    file.write_text("c.WasmKernel.cell_timeout = 5\n")
    told = " ".join(f.text for f in doctor.examine(tmp_path))
    assert "take their settings from ~/jupyter_wasm_kernel_config.py" in told


def test_the_doctor_reads_json_and_the_settings_of_kernelspecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    made = kernelspecs.install(kernelspecs.KernelspecPlace(prefix=str(tmp_path)))
    spec = spec_of(made)
    spec["argv"] = [sys.executable, "-m", "wasm_kernel", "--WasmKernel.fuel_budget=-1"]
    (made / "kernel.json").write_text(json.dumps(spec))
    (told,) = [f.text for f in doctor.examine(tmp_path) if f.mark == "broken"]
    assert "wasm-python does not start with its settings: WasmKernel.fuel_budget must" in told
    spec["argv"] = [sys.executable, "-m", "wasm_kernel", "--config=/gone/limits.py"]
    (made / "kernel.json").write_text(json.dumps(spec))
    (told,) = [f.text for f in doctor.examine(tmp_path) if f.mark == "broken"]
    assert "its settings: /gone/limits.py can't be read: there is no such file" in told
    spec["argv"] = ["/gone/python", "-m", "wasm_kernel"]
    (made / "kernel.json").write_text(json.dumps(spec))
    assert any("/gone/python" in f.text for f in doctor.examine(tmp_path) if f.mark == "broken")
    (made / "kernel.json").unlink()
    (tmp_path / "jupyter_wasm_kernel_config.json").write_text('{"WasmKernel":\n {"pip": tru}}')
    (told,) = [f.text for f in doctor.examine(tmp_path) if f.mark == "broken"]
    assert "jupyter_wasm_kernel_config.json, line 2, can't be read: JSONDecodeError" in told
