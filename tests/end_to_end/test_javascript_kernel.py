"""The JavaScript kernel: the protocol's own test suite, and what a notebook does with it."""

from __future__ import annotations

from collections.abc import Iterator

import jupyter_kernel_test
import pytest

from tests.end_to_end.conftest import starting_in
from tests.end_to_end.real_kernel import SECONDS, RealKernel

KERNEL = "wasm-javascript"


class TestProtocol(jupyter_kernel_test.KernelTests):
    kernel_name = KERNEL
    language_name = "javascript"
    file_extension = ".ts"
    code_hello_world = "console.log('hello, world')"
    code_stderr = "console.error('test')"
    completion_samples = [
        {"text": "struct", "matches": {"structuredClone"}},
        {"text": "Math.cei", "matches": {"ceil"}},
    ]
    complete_code_samples = ["1", "console.log('hello, world')", "let x: number = 1", "f(`a\nb`)"]
    incomplete_code_samples = ["function f() {", "const a = [1,", "`half", "x +", "/* open"]
    invalid_code_samples = ["f(]", "'half"]
    code_generate_error = "throw new Error('x')"
    code_execute_result = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[1, 2, 3].map(n => n * n)", "result": "[ 1, 4, 9 ]"},
    ]
    code_display_data = [
        {"code": "display.html('<b>test</b>')", "mime": "text/html"},
        {"code": "display.markdown('*test*')", "mime": "text/markdown"},
        {"code": "display({ 'text/latex': '$x$' })", "mime": "text/latex"},
        {"code": "display([{ a: 1 }])", "mime": "text/html"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "structuredClone"
    code_clear_output = "display.clear()"


# the base classes are not tests themselves
del jupyter_kernel_test


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    with starting_in(tmp_path_factory.mktemp("javascript") / "sessions") as start:
        yield start(name=KERNEL)


def test_a_cell_asks_its_user_and_has_commands_at_its_top(kernel: RealKernel) -> None:
    code = "const name: string = await prompt('Who? '); `hello ${name}`"
    sent = kernel.send(code, allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=SECONDS)
    kernel.client.input("you")
    assert kernel.heard(sent).value == "'hello you'"
    kernel.run("var a = 1")
    said = kernel.run("// before\n%checkpoint one\n%session_info\na = 2")
    assert "Checkpoint 'one'" in said.stdout
    assert "confinement" in said.stdout
    assert said.value == "2"
    assert kernel.run("%undo").stdout.startswith("Undone: ")
    assert kernel.run("a").value == "1"
    assert "fork" in kernel.run("%fork").stdout.lower()
    assert kernel.run("%nothing_like_it").error == "UsageError"
    assert kernel.run("const text = `\n%fork\n`; text.length").value == "7"
    assert kernel.run("process.cwd()").value == "'/notebook'"
