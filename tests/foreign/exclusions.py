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

IPYKERNEL = {
    "tests/inprocess": _OWN_CLASSES,
    "tests/test_comm.py": _OWN_CLASSES,
    "tests/test_connect.py": _OWN_CLASSES,
    "tests/test_curve.py": _OWN_CLASSES,
    "tests/test_displayhook.py": _OWN_CLASSES,
    "tests/test_eventloop.py": _OWN_CLASSES,
    "tests/test_heartbeat.py": _OWN_CLASSES,
    "tests/test_io.py": _OWN_CLASSES,
    "tests/test_ipkernel_direct.py": _OWN_CLASSES,
    "tests/test_jsonutil.py": _OWN_CLASSES,
    "tests/test_kernel_direct.py": _OWN_CLASSES,
    "tests/test_kernelapp.py": _OWN_CLASSES,
    "tests/test_kernelspec.py": _OWN_CLASSES,
    "tests/test_parentpoller.py": _OWN_CLASSES,
    "tests/test_subshell_wedge.py": _OWN_CLASSES,
    "tests/test_zmq_shell.py": _OWN_CLASSES,
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
    "tests/test_message_spec.py::test_kernel_info_request": "wants the version of the kernel to be "
    "2.1 or later, and subshells; the answer's other fields are in our own tests",
    "tests/test_message_spec.py::test_subshell": _SUBSHELLS,
    "tests/test_subshells.py::test_supported": _SUBSHELLS,
    "tests/test_subshells.py::test_subshell_id_lifetime": _SUBSHELLS,
    "tests/test_subshells.py::test_thread_counts": _SUBSHELLS,
    "tests/test_subshells.py::test_thread_ids": _SUBSHELLS,
    "tests/test_subshells.py::test_comm_reply_follows_requesting_subshell": _SUBSHELLS,
    "tests/test_subshells.py::test_run_concurrently_sequence": _SUBSHELLS,
    "tests/test_subshells.py::test_create_while_execute": _SUBSHELLS,
    "tests/test_subshells.py::test_shutdown_with_subshell": _SUBSHELLS,
    "tests/test_subshells.py::test_execute_stop_on_error": _SUBSHELLS,
    "tests/test_subshells.py::test_idle_message_parent_headers": _SUBSHELLS,
    "tests/test_subshells.py::test_silent_flag_in_subshells": _SUBSHELLS,
    "tests/test_subshells.py::test_unknown_subshell_id": _SUBSHELLS,
    "tests/test_subshells.py::test_comm_close_on_deleted_subshell": _SUBSHELLS,
}

NBCLIENT = {
    "tests/test_client.py::test_run_all_notebooks[update-display-id.ipynb": _KERNEL_OBJECT,
    "tests/test_client.py::test_parallel_notebooks": _HOST_FILES,
    "tests/test_client.py::test_async_parallel_notebooks": _HOST_FILES,
}

_COVERAGE = "imports coverage in the kernel, where it is not built in"

PAPERMILL = {
    "papermill/tests/test_execute.py::TestBrokenNotebook2::test": "fails with ipykernel, too: a "
    "traceback of a newer IPython",
}

NBVAL_OWN = {
    "tests/test_coverage.py": _COVERAGE + "; and its notebook lies in what the test makes the home "
    "folder, of which nothing is shown",
    "tests/test_nbdime_reporter.py": "shows a report in a browser, without a kernel",
}

NBMAKE = {
    "tests/test_nb_run.py::TestNotebookRun::test_when_runs_then_cwd_is_nb_location": "wants the "
    "folder's name from os.getcwd(), which is /notebook",
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
