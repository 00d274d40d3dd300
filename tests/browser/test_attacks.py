"""ATTACKS 25 in the real JupyterLab: every payload on every route, looked at, poked and clicked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.browser.canary import Canary
from tests.browser.jupyterlab import Lab, Server
from tests.outputs.payloads import PAYLOADS, Payload
from tests.outputs.routes import ROUTES, cells

FIRST = ("display", "update")
SECOND = tuple(route for route in ROUTES if route not in FIRST)

# In the control run these would take the page away from under the others.
DESTRUCTIVE = ("meta_refresh", "base_href", "frameset", "restyle", "clobber", "link_relative")

# Moves over, presses, focuses and clicks everything in the outputs, but for links to the web: where
# those lead is the user's to judge.
POKE = """async () => {
    const moves = ['pointerover', 'mouseover', 'mouseenter', 'mousemove', 'pointerdown',
                   'mousedown', 'mouseup', 'focusin'];
    const all = [...document.querySelectorAll('.jp-OutputArea-output *')];
    for (const element of all) {
        for (const kind of moves)
            element.dispatchEvent(new MouseEvent(kind, {bubbles: true, cancelable: true}));
        if (element.focus) element.focus();
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
# Whether what lies at the menu, the toolbar, the tabs and the side bar is what belongs there.
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
    """What went on in a page beside the outputs being shown."""

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
    # JupyterLab makes links of addresses in text; with no window to come from they lead nowhere
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


@pytest.mark.parametrize(
    ("routes", "every"),
    [
        pytest.param(FIRST, 1, id="rich"),
        pytest.param(SECOND, 3, id="others", marks=pytest.mark.soak),
    ],
)
def test_nothing_runs_nothing_is_fetched_nothing_is_covered(
    lab: Lab, server: Server, canary: Canary, routes: tuple[str, ...], every: int
) -> None:
    seen = Seen()
    seen.watch(lab.page)
    notebook = server.notebook(f"attack-{routes[0]}", list(cells(armed(canary)[::every], routes)))
    lab.open(notebook)
    before = lab.page.evaluate(PAGE)
    lab.run_all()
    assert lab.page.evaluate(POKE) > len(PAYLOADS) // every
    assert_untouched(lab, seen, canary, before)
    if every > 1:
        return
    # what was saved is as harmless when it is opened again
    lab.command("docmanager:save")
    lab.open(notebook)
    lab.settle()
    assert lab.page.evaluate(POKE) > len(PAYLOADS) // every
    assert_untouched(lab, seen, canary, before)


def test_the_control_run_notices(lab: Lab, server: Server, canary: Canary) -> None:
    Seen().watch(lab.page)  # JupyterLab asks before it is left; it stays
    payloads = armed(canary, DESTRUCTIVE)
    lab.open(server.notebook("control", list(cells(payloads, ["display"])), "wasm-trusted"))
    lab.run_all()
    lab.page.evaluate(POKE)
    ran = {name.removeprefix("pwned_") for name in lab.page.evaluate(RAN)}
    fetched = {path.split("/")[1].split(".")[0] for path in canary.heard}
    assert len(ran) >= 40, sorted(ran)
    assert len(fetched) >= 25, sorted(fetched)
    assert {"script", "img_onerror", "link_js_case", "js", "md_fence", "isolated"} - ran <= {
        "link_js_case"
    }
    assert {"img_remote", "style_import", "vegalite_url", "tex_doc_unicode"} <= fetched
