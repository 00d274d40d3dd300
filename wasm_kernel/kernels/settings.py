"""The kernel's settings: traits of `WasmKernel`, on the command line and in config files. They also
give the connection file and the session, before Jupyter's libraries are loaded.

The limits are not repeated here: each field of `ExecutionPolicy` becomes a trait of its name, with
the policy's own default and description.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, cast

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir
from traitlets import Bool, Dict, Enum, Float, Int, List, TraitError, TraitType, Unicode, default
from traitlets.config import Config, Configurable

from wasm_kernel.errors import Door, PolicyError
from wasm_kernel.folders.locks import Resume
from wasm_kernel.linux.confinement import AUTO, OFF, REQUIRED
from wasm_kernel.linux.folders import real_path
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.policy import (
    POLICY_FIELDS,
    ExecutionPolicy,
    RuntimeType,
    field_meanings,
    read_toml,
)
from wasm_kernel.publishing.names import PublishableNames, is_folder_name
from wasm_kernel.result import DATA_SUFFIXES
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.notebooks import SessionChoice, choose_session
from wasm_kernel.sessions.root import SessionsRoot

SESSION_NAME = "JPY_SESSION_NAME"
"""The variable in which Jupyter's server passes a kernel its notebook's path on the host.

Source: `SessionManager.get_kernel_env` of jupyter_server, since 2.0.
"""
LAUNCHER = "JPY_PARENT_PID"
"""The variable in which a launcher passes a kernel the number of the launcher's process.

Source: `launch_kernel` of jupyter_client.
"""
ROOT_ENVIRONMENT = "WASM_KERNEL_WORKSPACE_ROOT"
SECTION = "WasmKernel"
_PREFIX = "kernel-"
_JUPYTERS = ("JPY_", "JUPYTER")
"""The prefixes of variables in which Jupyter and JupyterHub pass keys to their children."""

_TRAITS: dict[str, Any] = {
    "bool": Bool,
    "int": Int,
    "str": Unicode,
    "float": Float,
    "_Mounts": List,
    "_Network": List,
    "Mapping[str, str]": Dict,
}


class SessionSettings(Configurable):
    """The session that a kernel opens, and what its cells may use."""

    language = Enum(
        [runtime.value for runtime in RuntimeType],
        RuntimeType.PYTHON.value,
        help="The language of the cells. Each kernelspec of wasm-kernel names its own.",
    )
    session_id = Unicode(
        help="The session to open. By default it is the notebook's, if Jupyter's server names the "
        "notebook. Otherwise it comes from the connection file's name, so that a restarted kernel "
        "finds its files again.",
    )
    reopen = Bool(
        True,
        help="Whether a notebook that is opened again with another kernel finds its session: its "
        "files, and its variables if `resume` says so. This needs Jupyter's server, which names "
        "the notebook's file. Without it each kernel begins with an empty session.",
    )
    workspace_root = Unicode(
        help="The folder that holds the sessions' folders. By default "
        "$WASM_KERNEL_WORKSPACE_ROOT, or wasm-kernel/sessions in Jupyter's data folder.",
    )
    private_root = Unicode(
        help="The folder for the parts of sessions that no cell sees: saved variables, earlier "
        "versions of files, packages. It must lie outside of `workspace_root`. By default "
        "wasm-kernel in the user's state folder (XDG_STATE_HOME), or a folder beside "
        "`workspace_root` if that is on another disk.",
    )
    folder = Enum(
        ["none", "read", "write"],
        "read",
        help="What cells see of the notebook's folder, in which the kernel was started. read: its "
        "files, as /notebook, where cells begin; what cells write or delete there changes the "
        "session alone. write: the same, and when a cell is over, the files that it wrote, "
        "replaced or deleted there change in the folder, too, if their suffix is one of "
        "`publish_suffixes`; `%undo --files` takes that back. Other files stay in the session. "
        "none: nothing; cells begin in /app.",
    )
    publish_folder = Unicode(
        help="The folder that `%session_publish` copies results into, such as results: a path "
        "below the folder that the kernel is started in. By default the folder beside the "
        "notebook that is named after it (orders.files for orders.ipynb), if Jupyter's server "
        "names the notebook. If it does not, as with papermill, the kernel publishes all results "
        "of its session into the folder named here when it ends.",
    )
    publish_suffixes = List(
        Unicode(),
        list(DATA_SUFFIXES),
        help="The suffixes of files that may be published, or written with `folder=write`: data, "
        "which no program runs. With `folder=write`, .json and .txt files land only in folders "
        "for results (results, output, NAME.files), because tools obey some files with these "
        "suffixes; suffixes of your own land anywhere. An empty list publishes nothing. By "
        f"default {', '.join(DATA_SUFFIXES)}.",
    )
    resume = Enum(
        [resume.value for resume in Resume],
        Resume.CRASH.value,
        help="When a kernel continues with the variables that an earlier kernel left in the "
        "session: never, after a crash of that kernel, or always, also tomorrow in the same "
        "notebook. A restart that you ask for begins with no variables. Files and named "
        "checkpoints are there in any case (`reopen`).",
    )
    confinement = Enum(
        [OFF, AUTO, REQUIRED],
        AUTO,
        help="Whether the kernel's processes give up access to files, new connections and "
        "programs. The one with the guest keeps Python's files, the cache, its session's, the "
        "mounts and the shown folder; the one with Jupyter's keys none of the session's. A flaw "
        "in the sandbox would then reach nothing else. off; auto, if Linux offers Landlock and "
        "seccomp; or required: no kernel starts without it.",
    )
    outputs = Enum(
        [mode.value for mode in Mode],
        Mode.SAFE.value,
        help="How much of rich outputs is shown. safe: HTML, SVG, Markdown, LaTeX and charts, "
        "without anything that runs, loads something or reaches out of its output; widgets of "
        "ipywidgets itself. static: text and raster images. trusted: everything unchanged; its "
        "scripts run in the front end with the rights of its user.",
    )
    tell_notebook = Bool(
        False,
        help="Whether cells see the path of their notebook in $JPY_SESSION_NAME, if Jupyter's "
        "server names it. The path may contain names of the host's folders.",
    )
    pass_env = List(
        Unicode(),
        help="The names of environment variables of the kernel's process that cells see. A "
        "variable that is not set is left out. Names that begin with JPY_ or JUPYTER are refused, "
        "because some hold Jupyter's keys. Values are saved with the session's variables. `env` "
        "sets variables to values of your own. None by default.",
    )
    pip = Bool(
        True,
        help="Whether cells may install packages: pure Python with %pip, pure JavaScript with "
        "%npm. The pip beside this kernel, or npm, fetches them with the user's configuration. "
        "None of their code runs outside of the sandbox.",
    )
    fork = Bool(
        True,
        help="Whether cells may make further sessions with %fork. `wasm-kernel run` turns it off, "
        "because the new sessions would stay, with their variables and files.",
    )
    prune_sessions = Bool(
        False,
        help="Whether %prune_sessions in a cell may delete other sessions that were not used for "
        "long. Off by default, because otherwise a notebook from another person could delete your "
        "sessions when you run it.",
    )
    sessions_bytes = Int(
        10 * 1024**3,
        min=0,
        help="The most disk space that all sessions in `workspace_root` may take together, in "
        "bytes (by default 10 GiB); 0 for no limit. Above it, saved variables and earlier "
        "versions of files are removed, from the largest and oldest sessions first. A session "
        "that takes less than its fair share keeps them, and one in use keeps them until it is "
        "closed. Files stay. Every kernel does this for all sessions, in the background.",
    )
    sessions_days = Float(
        90.0,
        min=0.0,
        help="The number of days without use after which a session's saved variables and earlier "
        "versions of files are removed. If its notebook is gone, its files go, too, two weeks "
        "after a cell has said so. 0 for never.",
    )
    allow_unsigned = Bool(
        False,
        help="Whether to run with a connection file that holds no key. Every program that reaches "
        "the kernel's ports can then run code in its sandbox.",
    )

    policy_file = Unicode(
        help="A TOML file with limits, as an absolute path. Its keys are the names of the limits. "
        "A limit that is set on the command line or in a config file wins.",
    )

    event_log = Unicode(
        help="A file for the events of the kernel and its session, one JSON object a line, as an "
        "absolute path. It is created readable by its owner alone, and appended to. None by "
        "default.",
    )

    @default("workspace_root")
    def _default_root(self) -> str:
        named = os.environ.get(ROOT_ENVIRONMENT)
        return named or str(Path(jupyter_data_dir(), "wasm-kernel", "sessions"))

    @property
    def runtime(self) -> RuntimeType:
        """The language of the cells."""
        return RuntimeType(self.language)

    @property
    def root(self) -> SessionsRoot:
        """The sessions' folder; `PlantedLinkError` if a relative path leads through a link."""
        private = _named(self.private_root) if self.private_root else None
        return SessionsRoot(_named(self.workspace_root), private)

    def published_into(self) -> tuple[str, ...]:
        """Returns the path from this process's folder to the one for published files, as names.

        Empty if neither the settings nor Jupyter's server give it. Raises `PolicyError` if the
        folder lies outside.
        """
        if not self.publish_folder:
            return folder_of_notebook(os.environ)
        names = tuple(self.publish_folder.removesuffix("/").split("/"))
        if not all(map(is_folder_name, names)):
            raise PolicyError(
                f"{SECTION}.publish_folder",
                "must be a path below the folder that the kernel is started in, such as results",
            )
        return names

    @property
    def event_file(self) -> Path | None:
        """The file that gets every event; None if there is none."""
        return _absolute("event_log", self.event_log) if self.event_log else None

    def check(self) -> None:
        """Raises `WasmKernelError` if a kernel would refuse a setting; opens nothing."""
        self.policy()
        PublishableNames(self.publish_suffixes)
        self.published_into()
        _ = self.root, self.event_file

    def choose_session(self, connection_file: Path) -> SessionChoice:
        """Returns the named session, or the notebook's, or the connection file's.

        Raises `SessionIdError` for a name that is not a session id.
        """
        notebook = notebook_of(os.environ) if self.reopen and not self.session_id else None
        session = ids.checked(self.session_id or session_of_file(connection_file))
        return choose_session(self.root, session, notebook)

    def policy(self, door: Door = Door.KERNEL) -> ExecutionPolicy:
        """Returns the limits of a sandbox that is used through a door.

        Raises `PolicyError`, which names the wrong setting.
        """
        values = {name: getattr(self, name) for name in POLICY_FIELDS}
        if self.policy_file:
            values |= self._written()
        values["env"] = {**self._passed(), **values["env"]}
        try:
            return ExecutionPolicy.from_values(values).at(door)
        except PolicyError as problem:
            raise PolicyError(f"{SECTION}.{problem.field}", problem.rule) from problem

    def _passed(self) -> dict[str, str]:
        """The environment variables that cells see; `PolicyError` for those with Jupyter's keys."""
        for name in self.pass_env:
            if name.startswith(_JUPYTERS):
                raise PolicyError(
                    f"{SECTION}.pass_env",
                    f"can't hold {name}: names that begin with JPY_ or JUPYTER may hold Jupyter's "
                    "keys. For the notebook's path there is tell_notebook",
                )
        named = [*self.pass_env, *([SESSION_NAME] if self.tell_notebook else [])]
        return {name: os.environ[name] for name in named if name in os.environ}

    def _written(self) -> dict[str, Any]:
        """The limits in the policy's file that no trait sets; `PolicyError` for an invalid one."""
        file = _absolute("policy_file", self.policy_file)
        try:
            limits = ExecutionPolicy.from_toml(file)
        except PolicyError as problem:
            if problem.where:
                raise  # the error already names the file and the key
            rule = f"names {problem.field}, which {problem.rule}"
            raise PolicyError(f"{SECTION}.policy_file", rule) from problem
        said = self._find_my_config(self.config)
        return {name: getattr(limits, name) for name in read_toml(file) if name not in said}


for _setting in SessionSettings.class_own_traits().values():
    _setting.tag(config=True)  # so that config files and the command line can set it


def _named(text: str) -> Path:
    """The absolute path of a folder; a relative one must not lead through a link."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else real_path(path)


def _absolute(trait: str, text: str) -> Path:
    """The absolute path of a user's file; the kernel's folder may hold files of others."""
    file = Path(text).expanduser()
    if not file.is_absolute():
        raise PolicyError(f"{SECTION}.{trait}", "must be an absolute path")
    return file


def _trait(field: Field[Any], description: str) -> TraitType[Any, Any]:
    kind = _TRAITS[str(field.type).removesuffix(" | None")]
    options: dict[str, Any] = {"config": True, "help": description}
    if kind in (List, Dict):
        options["trait" if kind is List else "value_trait"] = Unicode()
        return cast(TraitType[Any, Any], kind(**options))
    assert field.default is not MISSING
    optional = str(field.type).endswith("None")
    return cast(TraitType[Any, Any], kind(field.default, allow_none=optional, **options))


# Named WasmKernel, as traitlets names a section of the configuration by its class. It is not a part
# of the kernel class itself, whose import takes long, so that the guest can start before it.
_settings: Any = type(SessionSettings)
_limits, _meanings = fields(ExecutionPolicy), field_meanings()
_named_limits = [each for each in _limits if each.name in POLICY_FIELDS]
_traits = {each.name: _trait(each, _meanings.get(each.name, "")) for each in _named_limits}
KernelSettings: type[SessionSettings] = _settings(SECTION, (SessionSettings,), _traits)


def check_names(config: Config) -> None:
    """Raises `TraitError` for an unknown setting: a misspelt limit must not get lost."""
    known = KernelSettings.class_trait_names(config=True)
    for name in sorted(set(config.get(SECTION, {})) - set(known)):
        import difflib

        like = difflib.get_close_matches(name, known, 1)
        meant = f" Is {like[0]} meant?" if like else ""
        raise TraitError(f"There is no setting {SECTION}.{name}.{meant}")


def jupyters_folders() -> tuple[Path, ...]:
    """Returns Jupyter's own folders: of connection files, data and configuration."""
    return (Path(jupyter_runtime_dir()), Path(jupyter_data_dir()), Path(jupyter_config_dir()))


# -- the connection file and the session


def connection_path(name: str) -> Path:
    """Returns the path of a connection file's name, as other Jupyter kernels read it.

    A plain name is searched in the current folder and in Jupyter's runtime folder; a new file lies
    in the runtime folder. An empty name stands for a new file.
    """
    name = name or f"{_PREFIX}{os.getpid()}.json"
    here = Path(name).expanduser()
    if here.exists() or here.name != name:
        return here.absolute()
    return Path(jupyter_runtime_dir(), name)


def session_of_file(path: Path) -> str:
    """Returns the id of a connection file's session, which is always the same.

    Jupyter names the file by the kernel's own id and keeps both over a restart. For other files the
    id depends on their path and their key; a file that does not exist yet gets a new session.
    """
    if (found := ids.uuid_in(path.stem.removeprefix(_PREFIX))) is not None:
        return found
    try:
        key = json.loads(path.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return ids.new()
    return ids.derived(os.fsencode(path), str(key).encode())


def notebook_of(environment: Mapping[str, str]) -> Path | None:
    """Returns the path of the notebook that a kernel was started for; None if no server names one.

    If a notebook's program starts kernels itself, they inherit the notebook's variable, but it is
    not their notebook.
    """
    name = environment.get(SESSION_NAME, "")
    if not Path(name).is_absolute():
        return None
    launcher = environment.get(LAUNCHER, "")
    try:
        handed_on = Path("/proc", launcher, "environ").read_bytes().split(b"\0")
    except OSError:  # such as without a launcher
        handed_on = []
    return None if os.fsencode(f"{SESSION_NAME}={name}") in handed_on else Path(name)


def folder_of_notebook(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the name of the folder beside the notebook that is named after it.

    Empty if no notebook is named, or if this process was not started in its folder.
    """
    path = notebook_of(environment)
    try:
        known = path is not None and path.is_file() and path.parent.samefile(".")
    except OSError:
        known = False
    name = f"{path.stem}.files" if path is not None else ""
    return (name,) if known and is_folder_name(name) else ()
