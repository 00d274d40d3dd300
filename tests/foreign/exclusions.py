"""The foreign tests that can't apply to our kernel, each with its reason.

A key is the beginning of a test's id: a test, one of its cases, or a whole file.
"""

from __future__ import annotations

_OWN_CLASSES = "builds ipykernel's own classes in the test's process: no kernel is started by name"
_EMBEDDED = "starts ipykernel's kernel inside a Python program"
_DEBUGGER = "there is no debug adapter in the guest, and the kernelspec says so"
_GUI = "event loops of desktop windows"
_THREADS = "the guest has no threads"
_PROCESSES = "the guest has no processes"
_SUBSHELLS = "a subshell is a second thread of cells; the guest has one, and the kernel says so"
_KERNEL_OBJECT = "asks for the kernel's object or its sockets, which lie outside of the sandbox"
_HOST_FILES = "a file of the host, in a folder that is not the notebook's"

_OF_OWN_CLASSES = (
    "comm connect curve displayhook eventloop heartbeat io ipkernel_direct jsonutil "
    "kernel_direct kernelapp kernelspec parentpoller subshell_wedge zmq_shell"
)
_OF_SUBSHELLS = (
    "supported subshell_id_lifetime thread_counts thread_ids "
    "comm_reply_follows_requesting_subshell run_concurrently_sequence create_while_execute "
    "shutdown_with_subshell execute_stop_on_error idle_message_parent_headers "
    "silent_flag_in_subshells unknown_subshell_id comm_close_on_deleted_subshell"
)
IPYKERNEL = {
    **{f"tests/test_{name}.py": _OWN_CLASSES for name in _OF_OWN_CLASSES.split()},
    **{f"tests/test_subshells.py::test_{name}": _SUBSHELLS for name in _OF_SUBSHELLS.split()},
    "tests/inprocess": _OWN_CLASSES,
    "tests/test_embed_kernel.py": _EMBEDDED,
    "tests/test_start_kernel.py": _EMBEDDED,
    "tests/test_debugger.py": _DEBUGGER,
    "tests/test_matplotlib_eventloops.py": _GUI,
    "tests/test_kernel.py::test_simple_print": "asks whether standard output is a forked child's: "
    + _PROCESSES,
    "tests/test_kernel.py::test_print_to_correct_cell_from_thread": _THREADS,
    "tests/test_kernel.py::test_print_to_correct_cell_from_child_thread": _THREADS,
    "tests/test_kernel.py::test_print_to_correct_cell_from_asyncio": "a task goes on after its "
    "cell: the guest stands still between cells",
    "tests/test_kernel.py::test_subprocess_print": _PROCESSES,
    "tests/test_kernel.py::test_subprocess_noprint": _PROCESSES,
    "tests/test_kernel.py::test_subprocess_error": _PROCESSES,
    "tests/test_kernel.py::test_save_history": _HOST_FILES,
    "tests/test_kernel.py::test_parent_header_and_ident": _KERNEL_OBJECT,
    "tests/test_message_spec.py::test_kernel_info_request": _SUBSHELLS,
    "tests/test_message_spec.py::test_subshell": _SUBSHELLS,
}

NBCLIENT = {
    "tests/test_client.py::test_run_all_notebooks[update-display-id.ipynb": _KERNEL_OBJECT,
    "tests/test_client.py::test_parallel_notebooks": _HOST_FILES,
    "tests/test_client.py::test_async_parallel_notebooks": _HOST_FILES,
}

_COVERAGE = "imports coverage in the kernel, where it is not built in"

PAPERMILL = {
    "papermill/tests/test_execute.py::TestBrokenNotebook2::test": "fails with ipykernel, too: a "
    "traceback of a newer IPython"
}

NBVAL_OWN = {
    "tests/test_coverage.py": _COVERAGE + "; and its notebook lies in what the test makes the home "
    "folder, of which nothing is shown",
    "tests/test_nbdime_reporter.py": "shows a report in a browser, without a kernel",
}

NBMAKE = {
    "tests/test_nb_run.py::TestNotebookRun::test_when_runs_then_cwd_is_nb_location": "wants the "
    "folder's name from os.getcwd(), which is /notebook"
}

PYTEST_NOTEBOOK = {
    "tests/test_execution.py::test_execute_notebook_with_coverage": _COVERAGE,
    "tests/test_nb_regression.py::test_regression_coverage": _COVERAGE,
    "tests/test_plugin_collector.py::test_run_with_coverage_merge": _COVERAGE,
    "tests/test_plugin_collector.py::test_run_skip_inside_notebook": "imports pytest in a cell, "
    "which %pip would have to bring in first",
    "tests/test_plugin_collector.py::test_run_with_exec_env_ini": "its notebook lies in what the "
    "test makes the home folder, and the first cell says that nothing of that is shown",
}
