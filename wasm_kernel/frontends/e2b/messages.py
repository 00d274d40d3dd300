"""The bodies of requests and answers of E2B's API, as its clients name them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

TEMPLATES = ("base", "code-interpreter-v1", "code-interpreter-beta")
"""The names of the server's one template: the clients' default choices."""
ENVD_VERSION = "0.5.7"
"""The newest version of E2B's own server in a sandbox whose calls are all here."""
NO_PORTS = "sandboxes-have-no-ports.invalid"
"""The domain that clients are told for the ports of a sandbox; no name in it resolves."""
_FORKS_MOST = 100
_NAMES = {"id": "ID", "mb": "MB"}

Text = Annotated[str, Meta(max_length=1_000)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Texts = Annotated[dict[Text, Annotated[str, Meta(max_length=32_000)]], Meta(max_length=1_000)]
Seconds = Annotated[int, Meta(ge=0, le=10**9)]


def _in_api(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(_NAMES.get(each, each.capitalize()) for each in rest)


class JsonBody(Struct, rename=_in_api):
    """A body of JSON."""


class Error(JsonBody):
    """The answer to a request that is refused; Connect's codes are texts."""

    code: int | str
    message: str


# -- sandboxes


class SandboxAutoResumeConfig(JsonBody):
    """The choice whether a request wakes a sandbox that was paused by its time-out."""

    enabled: bool = False


class NewSandbox(JsonBody):
    """A sandbox to make. Options that are refused may have values of any type."""

    template_id: Text
    timeout: Seconds = 300
    metadata: Texts = {}
    env_vars: Texts = {}
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: SandboxAutoResumeConfig = field(default_factory=SandboxAutoResumeConfig)
    network: dict[str, Any] | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: Any = None


class Sandbox(JsonBody):
    """The data by which a client reaches a sandbox."""

    sandbox_id: str
    envd_access_token: str
    traffic_access_token: str
    template_id: str = TEMPLATES[1]
    client_id: str = "wasm-kernel"
    envd_version: str = ENVD_VERSION
    domain: str = NO_PORTS


class SandboxLifecycle(JsonBody):
    """The action at the time-out: `kill` or `pause`."""

    auto_resume: bool
    on_timeout: str


class ListedSandbox(JsonBody):
    """The facts about a sandbox in a list."""

    sandbox_id: str
    template_id: str
    started_at: str
    end_at: str
    state: str
    metadata: dict[str, str]
    memory_mb: int
    disk_size_mb: int
    cpu_count: int
    client_id: str = "wasm-kernel"
    envd_version: str = ENVD_VERSION


class SandboxDetail(ListedSandbox, kw_only=True):
    """All facts about a sandbox, with the secret that requests to it carry."""

    envd_access_token: str
    lifecycle: SandboxLifecycle


class SandboxTimeoutRequest(JsonBody):
    """The seconds from now after which the sandbox ends."""

    timeout: Seconds = 300


class ConnectSandbox(SandboxTimeoutRequest):
    """Connects to a sandbox; `memory` says whether a paused one gets its variables back."""

    memory: bool = True


class SandboxPauseRequest(JsonBody):
    """Pauses a sandbox; without `memory` only its files stay."""

    memory: bool = True


class SandboxForkRequest(JsonBody):
    """Copies a sandbox `count` times."""

    timeout: Seconds = 15
    count: Annotated[int, Meta(ge=1, le=_FORKS_MOST)] = 1


class SandboxForkResult(JsonBody):
    """One copy of a sandbox."""

    sandbox: Sandbox


class SandboxMetric(JsonBody):
    """The resources that a sandbox uses now, in bytes; the processor's use since it was made."""

    timestamp: str
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


# -- code


class ExecutionRequest(JsonBody, rename=None):
    """A cell to run: in a context, or in the default one of a language."""

    code: str
    context_id: Text | None = None
    language: Text | None = None
    env_vars: Texts | None = None


class CreateContext(JsonBody):
    """A context to make."""

    language: Text | None = None
    cwd: Text | None = None


class Context(JsonBody):
    """The facts about a context."""

    id: str
    language: str
    cwd: str


# -- files


class StatRequest(JsonBody):
    """A file or a folder."""

    path: Path


class ListDirRequest(StatRequest):
    """A folder, and the number of levels to list."""

    depth: int = 1


class MoveRequest(JsonBody):
    """A file or folder, and its new path."""

    source: Path
    destination: Path


class EntryInfo(JsonBody, omit_defaults=True):
    """A file, folder or link, as Protobuf writes it in JSON."""

    name: str
    type: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: str
    symlink_target: str = ""


class StatResponse(JsonBody):
    """The answer to a call about one file or folder."""

    entry: EntryInfo


class ListDirResponse(JsonBody):
    """The answer to `ListDir`."""

    entries: list[EntryInfo]


class Nothing(JsonBody):
    """An empty body."""


class WriteInfo(JsonBody):
    """A written file."""

    name: str
    path: str
    type: str = "file"


# -- commands


class ProcessConfig(JsonBody):
    """A command: a program, its arguments, its environment and its folder."""

    cmd: Text
    args: list[str] = []
    envs: Texts = {}
    cwd: Path | None = None


class StartRequest(JsonBody):
    """A command to start."""

    process: ProcessConfig
    pty: Any = None
    stdin: bool = False


class ProcessSelector(JsonBody):
    """The number of a running command."""

    pid: int = 0


class SendSignalRequest(JsonBody):
    """A signal for a command; every signal ends it."""

    process: ProcessSelector
