"""The shell: `!command`, `%%bash`, and `subprocess` over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.conftest import Victim
from tests.execution.conftest import Opening
from tests.execution.shell_scripts import SCRIPTS
from tests.faces import error_of, put_back
from wasm_kernel import BaseSandbox, ExecutionPolicy, SandboxResult, create_sandbox

FILES = "for name in ('a.csv', 'b.csv', 'c.txt'): open(name, 'w').write(name + '\\n')"
ANEW = f"""
import os, shutil, subprocess

def run(script):
    for entry in os.scandir("/app"):
        shutil.rmtree(entry) if entry.is_dir() else os.remove(entry)
    {FILES}
    done = subprocess.run(script, shell=True, capture_output=True, text=True)
    return done.stdout, done.stderr
"""


@pytest.fixture(scope="module")
def filled(module_sandbox: BaseSandbox) -> BaseSandbox:
    """The file's sandbox, with three files to begin with."""
    module_sandbox.execute(FILES)
    return put_back(module_sandbox)


@pytest.fixture
def shell(filled: BaseSandbox) -> BaseSandbox:
    """A sandbox with three files."""
    return put_back(filled)


def said(sandbox: BaseSandbox, code: str) -> SandboxResult:
    """Runs a cell that must succeed."""
    result = sandbox.execute(code)
    assert result.error is None, result.error
    return result


def all_run(sandbox: BaseSandbox, scripts: list[str]) -> list[tuple[str, str]]:
    """The output and errors of scripts, each with three files only."""
    asked = f"{ANEW}\nimport json\nprint(json.dumps([run(script) for script in {scripts}]))"
    return [(out, error) for out, error in json.loads(said(sandbox, asked).stdout)]


def test_programs_are_found_in_a_path_that_the_cell_has_set(shell: BaseSandbox) -> None:
    begin = "import getpass, os\nos.environ['PATH'] += ':/app/tools'\nos.mkdir('tools')\n"
    write = "open('tools/hi', 'w').write('#!/bin/bash\\necho hi $USER $PATH')\n"
    result = said(
        shell, f"{begin}{write}os.chmod('tools/hi', 0o755)\n!hi\nprint(getpass.getuser())"
    )
    assert result.stdout == "hi user /usr/bin:/bin:/app/tools\nuser\n"


MANY = """
a=($(seq 20000))
for i in {1..50}; do a+=($i); x=${#a[@]}; ((x == ${#a[@]})) || echo "$x"; done
i=0
while read -r line && ((i < 50)); do ((i += 1)); done <<< "$(seq 20000)"
echo "${#a[@]} ${a[-1]} $i"
"""


def test_a_long_array_is_no_slower_to_use_than_a_short_one(shell: BaseSandbox) -> None:
    """Formerly, each step looked at all elements, which took a third of a second."""
    result = said(shell, f"import subprocess; print(subprocess.getoutput({MANY!r}))")
    assert result.stdout == "20050 50 50\n"
    assert result.duration < 30  # it took a minute


def test_df_and_free_tell_the_limits_of_the_sandbox(tmp_path: Path) -> None:
    mib = 1024 * 1024
    policy = ExecutionPolicy(workspace_bytes=64 * mib, memory_bytes=512 * mib)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        said(sandbox, f"open('big', 'wb').write(bytes({16 * mib}))")
        script = "df -m | tail -1 | tr -s ' '; free -m | awk 'NR == 2 {print $2, ($3 + $4 <= 513)}'"
        assert said(sandbox, f"!{script}").stdout == "session 64 16 48 25% /app\n512 1\n"
        usage = "import shutil\nprint(*(n >> 20 for n in shutil.disk_usage('/tmp')))"
        assert said(sandbox, usage).stdout == "64 16 48\n"


def test_df_of_a_session_without_any_space_prints_no_percentage(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path, policy=ExecutionPolicy(workspace_bytes=0)) as sandbox:
        assert said(sandbox, "!df -m | tail -1 | tr -s ' '").stdout == "session 0 0 0 - /app\n"


def test_a_script_prints_what_bash_would(shell: BaseSandbox) -> None:
    found = zip(SCRIPTS, all_run(shell, [*SCRIPTS]), strict=True)
    assert {script: told for script, told in found if told != (SCRIPTS[script], "")} == {}


def test_yes_tells_that_it_has_an_end(shell: BaseSandbox) -> None:
    told = said(shell, "!yes | head -3; yes | wc -l; set -o pipefail; yes | cat | wc -c; echo $?")
    assert told.stdout == "y\ny\ny\n10000\n20000\n1\n"
    end = "yes: ended after 10000 lines: commands of a pipe run one after another\n"
    assert told.stderr == end * 2


CELLS = {
    "!ls *.csv | head -3": "a.csv\nb.csv\n",
    "name = 'c'\n!cat {name}.txt; echo $name": "c.txt\nc\n",
    "%env A=é\n!sh -c 'echo $A > f; cat f'; python -c 'import os; print(os.getenv(\"A\"))'": (
        "env: A=é\né\né\n"
    ),
    "%cd -q /tmp\n!pwd; cd /app; pwd\n%cd -q /app\n!pwd": "/tmp\n/app\n/app\n",
    "files = !ls *.csv\nprint(files.n, len(files))": "a.csv\nb.csv 2\n",
    "%%bash\nx=1\nfor i in 1 2 3; do\n  x=$((x + i))\ndone\necho $x": "7\n",
    "%%bash one two\necho $2 $#": "two 2\n",
    "%%bash -s one 'two three' -x\necho $2 $#": "two three 3\n",
    "%%bash -euo pipefail --no-raise-error\nfalse | cat\necho not reached": "",
    "%%script --out printed bash -s one\necho $1\n": "",
    "print(printed)": "one\n\n",
    "%%bash -s a b --out printed --err wrong\necho $2; echo $# >&2": "",
    "print(printed, wrong)": "b\n 2\n\n",
    "%%python - one --two\nimport sys; print(sys.argv)": "['-', 'one', '--two']\n",
    "%%sh --out seen\necho hi\n": "",
    "%%script bash\necho hi\n": "hi\n",
    "kept = 1\n!python -c 'print(\"kept\" in dir())'": "False\n",
    "%%python\nprint(__name__)": "__main__\n",
    "!python -c 'import os; os.system(\"echo inner | cat\")' | tr i I": "Inner\n",
}


def test_a_line_or_a_cell_is_a_script(shell: BaseSandbox) -> None:
    found = {code: said(shell, code) for code in CELLS}
    assert {code: result.stdout for code, result in found.items()} == CELLS
    assert {result.stderr for result in found.values()} == {""}


def test_a_script_that_fails_fails_its_cell(shell: BaseSandbox) -> None:
    error = error_of(shell.execute("%%bash\necho begun\nexit 3"))
    assert error.startswith("CalledProcessError:")
    assert "exit status 3" in error
    assert said(shell, "%%bash --no-raise-error\nexit 3").error is None
    assert "a script has ended" in error_of(shell.execute("%%bash --bg\nsleep 9"))
    said(shell, "!cat missing")
    assert said(shell, "_exit_code").outputs[0].data["text/plain"] == "1"


def test_what_is_no_archive_is_told_and_a_program_s_error_its_own(shell: BaseSandbox) -> None:
    told = said(shell, "!unzip a.csv; tar xf missing; gunzip < a.csv").stderr.splitlines()
    assert [line.partition(":")[0] for line in told] == ["unzip", "tar", "gunzip"]
    result = said(shell, "!python -c '1/0'; echo $?")
    assert result.stdout == "1\n"
    assert result.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "<string>", line 1, in <module>',
        "ZeroDivisionError: division by zero",
    ]


def test_a_place_that_is_read_only_is_told_in_words(shell: BaseSandbox) -> None:
    told = said(shell, "!touch /x; cp a.csv /x; mkdir -p /content/data").stderr.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["Read-only file system"] * 3
    assert "EROFS" not in "".join(told)


def test_a_program_reads_its_modules_anew(shell: BaseSandbox) -> None:
    said(shell, "!echo 'x = 1' > m.py\nimport m")
    told = said(shell, "!echo 'x = 22' > m.py; python -c 'import m; print(m.x)'\nprint(m.x)")
    assert told.stdout == "22\n1\n"


def test_a_script_may_remove_the_folder_of_its_cell(shell: BaseSandbox) -> None:
    begin = "import os\nos.makedirs('d')\nos.chdir('d')\n"
    remove = "!python -c 'import os; os.environ = {}; os.rmdir(\"/app/d\")'"
    said(shell, f"{begin}home = os.environ\n{remove}")
    result = said(shell, "print(os.environ is home)\n!echo on | sort; pwd")
    assert result.stdout == "True\non\n/app\n"
    result = said(shell, f"{begin}!rmdir /app/d; echo on; echo x | sort")
    assert (result.stdout, "No such file" in result.stderr) == ("on\n", True)
    assert said(shell, "!echo on | sort").stdout == "on\n"


CALLS = {
    "print(sp.run('ls | wc -l', shell=True, capture_output=True, text=True).stdout)": "3\n\n",
    "print(sp.check_output(['echo', '$HOME', 'a b']))": "b'$HOME a b\\n'\n",
    "print(sp.run([sys.executable, '-c', 'print(1)'], stdout=sp.PIPE).stdout)": "b'1\\n'\n",
    "print(sp.run(['cat'], input='x', text=True, capture_output=True).stdout)": "x\n",
    "print(sp.run('pwd', shell=True, cwd='/tmp', env={}).returncode)": "/tmp\n0\n",
    "sp.run('ls e[n]v', shell=True, cwd='/usr/bin/')": "env\n",
    "p = sp.Popen('cat', stdin=-1, stdout=-1)\nprint(p.communicate(b'in'))": "(b'in', None)\n",
    "print(sp.run('exit 2', shell=True).returncode, os.system('exit 1'))": "2 256\n",
    "print(os.popen('echo hi').read())": "hi\n\n",
    "print(sp.getstatusoutput('echo x; exit 5'))": "(5, 'x')\n",
    "p = sp.Popen('true', stdin=-1)\nprint(p.wait(), p.communicate(b'in'))": "0 (None, None)\n",
    "print(sp.getoutput(f'{sys.executable} -c \"print(2)\"'))": "2\n",
    "print(sp.run(['python', '-uB', '-OOc', 'print(1)'], stdout=-1).stdout)": "b'1\\n'\n",
    "print(os.waitstatus_to_exitcode(os.system('exit 3')))": "3\n",
    "p = sp.run(['python', '-c', 'import os; os._exit([])'], stderr=-1)\nprint(p.stderr[-8:])": (
        "b'integer\\n'\n"
    ),
    "import shutil\nprint(*map(shutil.which, ['ls', '/bin/sed', 'nosuch']))": (
        "/usr/bin/ls /usr/bin/sed None\n"
    ),
    "print(os.getppid(), os.getlogin(), *os.sched_getaffinity(0))": "1 user 0\n",
    "print(os.environ['TZ'])": "UTC\n",
    "import time\nprint(time.thread_time() > 0)": "True\n",
    "sp.run('echo e >&2', shell=True, stderr=sp.DEVNULL)\nprint('on')": "on\n",
    "p = sp.Popen('cat', stdin=-1, stdout=-1)\np.stdin.write(b'x')\nprint(*p.stdout)": "b'x'\n",
    "sp.run(['x', 'hi'], executable='echo', cwd=b'/tmp', env={b'a': b'b'})": "hi\n",
    "f = open('in', 'w+')\nf.write('x')\nf.seek(0)\nsp.run('cat', stdin=f.fileno())": "x",
}
FAILURES = {
    "sp.run(['/nosuch'])": "FileNotFoundError",
    "sp.run('true', cwd='/nosuch')": "FileNotFoundError",
    "sp.run(['sleep', '0.2'], timeout=0.1)": "TimeoutExpired",
    "import os; os.get_terminal_size()": "OSError",
}


def test_subprocess_runs_what_the_shell_knows_and_fails_as_on_a_machine(shell: BaseSandbox) -> None:
    found = {code: said(shell, f"import os, sys, subprocess as sp\n{code}") for code in CALLS}
    assert {code: result.stdout for code, result in found.items()} == CALLS
    assert {result.stderr for result in found.values()} == {""}
    errors = {code: shell.execute(f"import subprocess as sp\n{code}").error for code in FAILURES}
    assert {code: error and error.ename for code, error in errors.items()} == FAILURES


BYTES = r"""
import subprocess
data = bytes(range(256)) * 2 + "aé漢😀".encode() + b"\xed\xa0\x80"
without = data.replace(b"\0", b"")
for name, content in {"all": data, "e": without}.items():
    open(name, "wb").write(content)
ran = subprocess.run(["cat"], input=data, capture_output=True)
subprocess.run("cat all | tee b > c; x=$(cat e); printf %s \"$x\" > d", shell=True)
b, d = open("b", "rb").read(), open("d", "rb").read()
print(ran.stdout == data, b == data, d == without)
"""


def test_bytes_pass_through_scripts_as_they_are(shell: BaseSandbox) -> None:
    assert said(shell, BYTES).stdout == "True True True\n"


AWAITED = """
import asyncio
PIPE = asyncio.subprocess.PIPE
pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
ran = await asyncio.create_subprocess_shell("cat; echo e >&2; exit 3", **pipes)
print(await ran.communicate(input=b"in"), ran.returncode)
ran = await asyncio.create_subprocess_exec("cat", **pipes)
ran.stdin.writelines([b"a\\nb", b"\\nc"])
await ran.stdin.drain()
ran.stdin.close()
print(await ran.stdout.readline(), [line async for line in ran.stdout], await ran.wait())
"""


def test_commands_can_be_awaited(shell: BaseSandbox) -> None:
    lines = said(shell, AWAITED).stdout.splitlines()
    assert lines == ["(b'in', b'e\\n') 3", "b'a\\n' [b'b\\n', b'c'] 0"]
    assert error_of(shell.execute("await asyncio.create_subprocess_exec('nosuch')")).startswith(
        "FileNotFoundError:"
    )


LOGS = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.info("hi")
"""
LEAVES = """
import atexit, builtins, gc, logging, random, signal, sys, warnings
import numpy
atexit.register(print, "bye")
atexit.register(sys.exit, 3)
atexit.register(min)
atexit.unregister(min)
random.seed(1)
numpy.random.seed(1)
warnings.simplefilter("ignore")
builtins.left = 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.setrecursionlimit(150)
sys.displayhook = sys.excepthook = builtins.open = None
gc.disable()
logging.disable()
logging.root = None
sys.meta_path.clear()
"""
LEFT = (
    "sys.meta_path[:], signal.getsignal(2), sys.getrecursionlimit(), open, gc.isenabled(), "
    "logging.root, root.handlers, root.level, warnings.filters[:], dir(builtins), "
    "random.getstate(), str(numpy.random.get_state())"
)


def test_a_program_has_loggers_of_its_own(shell: BaseSandbox) -> None:
    said(shell, f"open('logs.py', 'w').write({LOGS!r})\nimport logging\nlogging.basicConfig()")
    assert said(shell, "!python logs.py; python logs.py").stderr == "hi\nhi\n"
    assert said(shell, "logging.info('no')\nlogging.warning('on')").stderr == "WARNING:root:on\n"


def test_programs_call_functions_at_exit_and_leave_the_interpreter(shell: BaseSandbox) -> None:
    begun = "import builtins, gc, logging, random, signal, sys, warnings, numpy"
    begun += f"\nfrom logging import root\nbefore = {LEFT}"
    said(shell, f"{begun}\nopen('leaves.py', 'w').write({LEAVES!r})")
    ended = said(shell, "!python leaves.py")
    assert (ended.stdout, ended.stderr.splitlines()[-1]) == ("bye\n", "SystemExit: 3")
    assert said(shell, f"print(({LEFT}) == before)").stdout == "True\n"


def test_a_program_that_ends_by_a_system_call_ends_alone(shell: BaseSandbox) -> None:
    """Formerly, the guest ended with the program, and all variables were lost."""
    leaves = "import atexit, os\natexit.register(print, 'bye')\nprint('a')\n"
    leaves += "try: os._exit(3)\nexcept Exception: pass\nprint('b')"
    said(shell, f"kept = 1\nopen('leaves.py', 'w').write({leaves!r})")
    assert said(shell, "!python leaves.py || echo $?").stdout == "a\n3\n"
    ran = "import os, subprocess\nprint(kept, subprocess.call(['python', 'leaves.py']), os._exit)"
    assert said(shell, ran).stdout == "a\n1 3 <built-in function _exit>\n"


def test_programs_draw_their_own_numbers_and_may_be_folders_or_archives(shell: BaseSandbox) -> None:
    draw = "import random, numpy; print(random.random(), numpy.random.random())"
    drawn = said(shell, f"!python -c '{draw}'; python -c '{draw}'").stdout.split()
    assert len({*drawn}) == 4
    said(shell, "%mkdir program\nopen('program/__main__.py', 'w').write('print(__name__)')")
    script = "!python program; python -m zipapp program; python program.pyz"
    assert said(shell, script).stdout == "__main__\n__main__\n"


def test_a_choice_of_tests_ends_with_its_program(shell: BaseSandbox) -> None:
    case = "import unittest\nclass A(unittest.TestCase):\n    test_a = test_b = lambda self: None"
    said(shell, f"open('cases.py', 'w').write({case!r})")
    ran = said(shell, "!python -m unittest -k test_a cases; python -m unittest cases").stderr
    assert [line[:5] for line in ran.splitlines() if "Ran" in line] == ["Ran 1", "Ran 2"]
    said(shell, "!python -m unittest -k test_a cases")
    count = "unittest.defaultTestLoader.loadTestsFromName('cases').countTestCases()"
    assert said(shell, f"import unittest\nprint({count})").stdout == "2\n"


def test_a_program_that_is_not_there_is_not_found(shell: BaseSandbox) -> None:
    for command, advice in (
        ("ffmpeg", "No program of the machine runs"),
        ("git", "Bring the data"),
    ):
        failed = shell.execute(f"import subprocess\nsubprocess.run([{command!r}, 'x'])").error
        assert failed is not None and failed.ename == "FileNotFoundError"
        lines = "\n".join(failed.traceback)
        assert advice in lines and "no other path of this computer" not in lines
    script = "['bash', '-c', 'echo before; nosuch'], stdout=-1, stderr=-1"
    ran = said(shell, f"p = subprocess.run({script})\nprint(p.returncode, p.stdout)")
    assert ran.stdout == "127 b'before\\n'\n"
    told = said(shell, "!git status; gcc x.c")
    assert "git: Bring the data in as a file" in told.stderr
    assert "gcc: command not found" in told.stderr


def test_files_of_a_script_are_taken_back_with_its_cell(opened: Opening) -> None:
    sandbox = opened()
    said(sandbox, "!echo one > a.txt; mkdir d")
    said(sandbox, "!echo two > a.txt; rm -r d; touch new")
    said(sandbox, "%undo --files")
    assert said(sandbox, "!cat a.txt; ls").stdout == "one\na.txt\nd\n"


def test_scripts_count_against_the_quota(opened: Opening) -> None:
    sandbox = opened(workspace_bytes=10_000)
    assert "seq: write error: No space" in said(sandbox, "!seq 1 5000 > large; echo $?").stderr
    said(sandbox, "!rm large; seq 500 > kept")
    edited = said(sandbox, "!sed -i s/$/xxxxxxxxxxxxxxxxxxxx/ kept; echo $?; ls; tail -1 kept")
    assert edited.stdout == "4\nkept\n500\n"  # formerly, the file was cut
    assert edited.stderr == "sed: couldn't write kept: No space left on device\n"
    assert sum(path.stat().st_size for path in sandbox.workspace.rglob("*")) <= 10_000


OUTSIDE = [
    "cat /etc/passwd",
    "cat ../etc/passwd",
    "cat /app/../../etc/passwd",
    "cat /proc/self/environ",
    "ln -s /etc/passwd l && cat l",
    "ln -s ../../../etc l && cat l/passwd",
    "cat {secret}",
    "ls {secret}",
    "echo x > {secret}",
    "echo x > /etc/x",
    "cp a.csv /usr/x",
    "cat .wasm-kernel/*",
]


def test_a_script_reaches_nothing_outside(shell: BaseSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    told = all_run(shell, [script.format(secret=secret) for script in OUTSIDE])
    assert [out for out, _ in told] == [""] * len(OUTSIDE)
    assert all(error for _, error in told)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(
    "script",
    [
        ":(){ :|:& };:",
        *(
            pytest.param(script, marks=pytest.mark.soak)
            for script in (
                "x=a; while true; do x=$x$x; done",
                "f() { f; }; f",
                "jq -n '[range(1e9)]'",
            )
        ),
    ],
)
def test_a_script_without_an_end_ends(shell: BaseSandbox, script: str) -> None:
    assert said(shell, f"kept = 1\n!{script}").stderr
    assert said(shell, "!echo on; ls c.txt").stdout == "on\nc.txt\n"


CUT_SHORT = """
from wasm_kernel_agent import shell_commands as commands, shell_process as programs
program = programs.PythonProcess()
commands.running.append(program)
program.begin(programs.Streams(b""), "/tmp", {})
"""


def test_programs_cut_short_leave_the_cells_streams_and_folder(shell: BaseSandbox) -> None:
    """An interrupt may strike before the program's own end has put anything back."""
    assert shell.execute(CUT_SHORT).success
    assert said(shell, "!pwd").stdout == "/app\n"


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000",
        "awk 'BEGIN {while (1) ;}'",
        "python -c 'import os; os.system(\"while true; do :; done\")'",
    ],
)
def test_an_interrupt_ends_a_script(shell: BaseSandbox, script: str) -> None:
    code = f"kept = 'before'\nprint('begun')\n!{script}"
    assert error_of(Victim(shell).run(code, interrupt="begun")).startswith("KeyboardInterrupt:")
    assert said(shell, "kept\n").outputs[0].data["text/plain"] == "'before'"
    assert said(shell, "!echo on").stdout == "on\n"


def test_the_time_of_a_cell_is_that_of_its_script(opened: Opening) -> None:
    sandbox = opened(cell_timeout=1)
    assert error_of(sandbox.execute("!while true; do :; done")).startswith("CellTimeout:")
    assert said(sandbox, "!echo on").stdout == "on\n"


def test_a_script_burns_the_fuel_of_its_cell(warm_metered: None, tmp_path: Path) -> None:
    policy = ExecutionPolicy(fuel_budget=10**9)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        little, more = (sandbox.execute(f"!seq {n} | wc -l").fuel_consumed or 0 for n in (1, 999))
        assert more > little + 10**6
        assert error_of(sandbox.execute("!while true; do :; done")).startswith("OutOfFuel:")
        assert said(sandbox, "!echo on").stdout == "on\n"


def test_forged_results_nested_scripts_and_endless_output_are_ended(shell: BaseSandbox) -> None:
    for depth in -1, 0, 1, 2**70:
        request = f'{{"op": "result", "depth": {depth}, "stdout": "", "stderr": "", "exitCode": 0}}'
        told = said(shell, f"import _host\nprint(_host.call(b'\\1{request}').decode())")
        assert '"exitCode":126' in told.stdout
    assert said(shell, "!echo on").stdout == "on\n"
    said(shell, "open('r.py', 'w').write(\"import os; print('on'); os.system('python r.py')\")")
    result = said(shell, "!python r.py")
    assert "too many scripts" in result.stderr
    assert 5 < result.stdout.count("on") < 10
    assert said(shell, "!echo on").stdout == "on\n"
    assert "no room for the output" in error_of(
        shell.execute("!python -c 'print(\"x\" * 100_000_000)' | wc -c")
    )
    assert said(shell, "!echo on").stdout == "on\n"
