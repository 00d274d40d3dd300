"""ATTACKS 25 in the real JupyterLab: every payload on every route is looked at, touched and
clicked.

Also covers the messages to a widget, and the widgets in a page that is loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.browser.canary import Canary
from tests.browser.jupyterlab import Lab, Server
from tests.browser.widget_routes import widget_cells
from tests.outputs.payloads import PAYLOADS, Payload
from tests.outputs.routes import ROUTES, cells

OTHERS = {route: 3 for route in ROUTES if route not in ("display", "update")}
"""Routes for a soak: every n-th payload takes the route."""
SOME, MORE = 9, 3
"""Every 9th payload, or every 3rd, goes through widgets; all would take the page minutes.

A page that is loaded again shows widgets only if the kernel tells all their states within 4 s.
"""

# In the control run these would navigate away, and the other payloads with them.
DESTRUCTIVE = ("meta_refresh", "base_href", "frameset", "restyle", "clobber", "link_relative")

# Moves over, presses, focuses and clicks everything in the outputs, except links to the web, which
# are the user's to judge. Events bubble, so an event on an element without children reaches all its
# ancestors.
POKE = """async () => {
    const moves = ['pointerover', 'mouseover', 'mouseenter', 'mousemove', 'pointerdown',
                   'mousedown', 'mouseup', 'focusin'];
    const all = [...document.querySelectorAll('.jp-OutputArea-output *')];
    for (const element of all) {
        if (element.focus) element.focus();
        if (element.firstElementChild) continue;
        for (const kind of moves)
            element.dispatchEvent(new MouseEvent(kind, {bubbles: true, cancelable: true}));
        const link = element.closest('a');
        const address = link ? link.getAttribute('href') || link.getAttribute('xlink:href') : '';
        if (/^https?:/.test(address || '')) continue;
        element.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}));
    }
    await new Promise(resolve => setTimeout(resolve, 1500));
    return all.length;
}"""
ERROR = "chrome-error://chromewebdata/"
RAN = "Object.keys(window).filter(name => name.startsWith('pwned_')).sort()"
# Checks that the elements at the menu, the toolbar, the tabs and the side bar belong there.
COVERED = """() =>
    [[60, 14], [300, 14], [400, 46], [420, 75], [900, 75], [15, 54], [150, 52], [600, 888]]
    .filter(([x, y]) => document.elementFromPoint(x, y).closest('.jp-OutputArea'))"""
PAGE = """() => {
    const style = getComputedStyle(document.body);
    const panel = document.querySelector('#jp-main-dock-panel').getBoundingClientRect();
    return [style.display, style.position, style.getPropertyValue('--jp-layout-color0'),
            panel.width > 400, panel.height > 400, document.title.length > 0];
}"""


@dataclass
class Seen:
    """Everything that happened in a page apart from the outputs."""

    dialogs: list[str] = field(default_factory=list)
    pages: list[Any] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("dialog", self._dialog)
        page.context.on("page", self._opened)

    def _opened(self, page: Any) -> None:
        self.pages.append(page)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


def armed(canary: Canary, without: tuple[str, ...] = ()) -> list[Payload]:
    kept = [payload for payload in PAYLOADS if not payload.name.startswith(without or ("-",))]
    return [payload.armed(canary.address) for payload in kept]


def assert_untouched(lab: Lab, seen: Seen, canary: Canary, page_before: Any) -> None:
    # JupyterLab makes links of addresses in text; without an opener they are harmless
    leads = {page.url for page in seen.pages} - {"about:blank", ":", ERROR}
    elsewhere = [page.evaluate(RAN) for page in seen.pages]
    found = {
        "ran": lab.page.evaluate(RAN) + [name for names in elsewhere for name in names],
        "asked": sorted({path.strip("/") for path in canary.heard}),
        "outside": lab.outside,
        "dialogs": seen.dialogs,
        "pages": sorted(leads),
        "frames": [frame.url for frame in lab.page.frames if frame != lab.page.main_frame],
        "covered": lab.page.evaluate(COVERED),
        "page": lab.page.evaluate(PAGE) != page_before,
        "jupyterlab's dialogs": lab.page.locator(".jp-Dialog").count(),
    }
    assert not any(found.values()), {what: it for what, it in found.items() if it}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("routes", "first"),
    [
        pytest.param({"display": 1, "update": 3}, 0, id="displayed"),
        pytest.param({"update": 1}, MORE, id="updated"),
        pytest.param(OTHERS, 2 * MORE, id="others"),
    ],
)
def test_nothing_runs_nothing_is_fetched_nothing_is_covered(
    target: Lab, server: Server, canary: Canary, routes: dict[str, int], first: int
) -> None:
    attack = Attack(server, canary, routes, slice(first, None, SOME))
    target.load(attack.notebook)
    attack.harmless(target, lambda: target.load(attack.notebook))


def test_some_run_and_fetch_and_cover_nothing(lab: Lab, server: Server, canary: Canary) -> None:
    """Opens the notebook in the shared page: loading another one takes seconds."""
    attack = Attack(server, canary, {"display": 42, "update": 126}, slice(0, None, 6 * MORE * SOME))
    lab.open(attack.notebook)
    attack.harmless(lab, lab.reopen)


class Attack:
    """A notebook of payloads that take some routes, and of widgets with `some` payloads."""

    def __init__(self, server: Server, canary: Canary, routes: dict[str, int], some: slice) -> None:
        payloads = armed(canary)
        self._canary = canary
        self._least = sum(len(payloads[::part]) for part in routes.values()) + 1500 // some.step
        self._widgets = 180 // some.step
        sources = [
            cell for name, part in routes.items() for cell in cells(payloads[::part], [name])
        ]
        sources += widget_cells(payloads, some, canary.address)
        # a kernel of its own, as it tells the states of all widgets that it ever had
        self.notebook = server.notebook(f"attack-{some.start}-{some.step}", sources)

    def harmless(self, lab: Lab, again: Callable[[], None]) -> None:
        """Checks that the outputs do nothing, also in a notebook that is opened again.

        It shows the saved outputs, and asks the kernel for the whole state of every widget.
        """
        seen = Seen()
        seen.watch(lab.page)
        before = lab.page.evaluate(PAGE)
        lab.run_all()
        assert lab.page.evaluate(POKE) > self._least
        assert_untouched(lab, seen, self._canary, before)
        lab.command("docmanager:save")
        again()
        lab.page.wait_for_function(
            f"document.querySelectorAll('.widget-html-content').length > {self._widgets}"
        )
        lab.settle()
        assert lab.page.evaluate(POKE) > self._least
        assert_untouched(lab, seen, self._canary, before)
        for page in seen.pages:
            page.close()


@pytest.mark.soak
def test_the_control_run_notices(target: Lab, server: Server, canary: Canary) -> None:
    ran = ran_in(target, server, cells(armed(canary, DESTRUCTIVE), ["display"]))
    assert len(ran) >= 40, sorted(ran)
    fetched = fetched_from(canary)
    assert len(fetched) >= 25, sorted(fetched)
    assert {"script", "img_onerror", "link_js_case", "js", "md_fence", "isolated"} - ran <= {
        "link_js_case"
    }
    assert {"img_remote", "style_import", "vegalite_url", "tex_doc_unicode"} <= fetched


@pytest.mark.soak
def test_the_control_run_of_widgets_notices(target: Lab, server: Server, canary: Canary) -> None:
    payloads = armed(canary, DESTRUCTIVE)
    ran = ran_in(target, server, widget_cells(payloads, slice(0, None, MORE), canary.address))
    assert len(ran) >= 10, ran
    assert {"style", "picture", "film"} <= fetched_from(canary)


def ran_in(target: Lab, server: Server, sources: Iterable[str]) -> set[str]:
    """The payloads that ran in a notebook of a kernel that shows everything unchanged."""
    Seen().watch(target.page)  # JupyterLab asks before the page is left; it stays
    target.load(server.notebook("control", list(sources), "wasm-trusted"))
    target.run_all()
    target.page.evaluate(POKE)
    return {name.removeprefix("pwned_") for name in target.page.evaluate(RAN)}


def fetched_from(canary: Canary) -> set[str]:
    return {path.split("/")[1].split(".")[0] for path in canary.heard}
