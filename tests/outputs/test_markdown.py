"""Plain Markdown stays Markdown; Markdown that renderers read differently becomes HTML here."""

from __future__ import annotations

import pytest

from tests.outputs.strict import problems_in
from wasm_kernel.outputs.bundle import Mode, clean

CODE = "```python\ndef f(x): return 'a'  # {x}\n```\n"


def safe(text: str) -> dict[str, str]:
    return clean({"text/markdown": text}, {}, Mode.SAFE).data


@pytest.mark.parametrize("text", ["# Title\n\n- *one*", CODE, "```\n{'a': {1}}\n```", "a {b} c"])
def test_plain_formatting_stays_markdown(text: str) -> None:
    assert safe(text) == {"text/markdown": text}


@pytest.mark.parametrize(
    "text",
    [":::{iframe} https://x.y\n:::", "{abbr}`x`", "# x {#main .jp-Dialog}", "x {a=b}", "{: .x}"],
)
def test_markdown_that_some_renderers_make_more_of_comes_as_html(text: str) -> None:
    assert set(safe(text)) == {"text/html"}


@pytest.mark.parametrize("language", ["python", "html", "js+php", "no-such", "markdown", "mermaid"])
def test_code_is_text_whatever_it_says(language: str) -> None:
    hostile = "</code><img src=x onerror=alert(1)><script>1</script>&lt;script&gt;"
    html = safe(f"$x$\n\n```{language}\n{hostile}\n```\n")["text/html"]
    assert problems_in({"text/html": html}) == []
    assert "<img" not in html
    assert "<script" not in html
