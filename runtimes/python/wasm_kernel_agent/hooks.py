"""What runs before and after cells: IPython's events, which let an interrupt through."""

from __future__ import annotations

from typing import Any

from IPython.core.events import EventManager


class Events(EventManager):
    """IPython's callbacks. One that fails is told and passed over, as it is there."""

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Run the callbacks of an event.

        Raises:
            KeyboardInterrupt: the user's interrupt came upon a callback; it ends the cell. IPython
                itself would take it for the callback's own error, and run the cell.
        """
        for callback in list(self.callbacks[event]):
            try:
                callback(*args, **kwargs)
            except Exception:
                if self.print_on_error:
                    print(f"Error in callback {callback} (for {event}):")
                self.shell.showtraceback()
