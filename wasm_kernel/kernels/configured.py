"""The config files of kernels, as traitlets reads them."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from jupyter_core.application import JupyterApp
from traitlets import TraitError


class ConfiguredApp(JupyterApp):
    """An application that the config files of kernels configure."""

    name = "jupyter-wasm-kernel"  # so that jupyter_wasm_kernel_config.py configures it
    raise_config_file_errors = True  # an unreadable file must not lose a limit

    def load_files(self) -> None:
        """Reads the config files; `TraitError` if one can't be read."""
        try:
            self.load_config_file(suppress_errors=False)
        except TraitError:
            raise
        except (Exception, SystemExit) as problem:  # the files are programs
            from wasm_kernel.kernels import config_files

            raise TraitError(config_files.unreadable(problem)) from problem
