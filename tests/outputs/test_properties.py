"""Whatever bundle goes in, only harmless parts come out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.outputs.payloads import PAYLOADS
from tests.outputs.strict import problems_in
from wasm_kernel.outputs import documents
from wasm_kernel.outputs.bundle import MIME_RULES, Mode, clean
from wasm_kernel.outputs.html import clean_html
from wasm_kernel.outputs.removals import NotShowable, Removals, words

# Pieces at whose borders parsers have failed before.
TAGS = sorted(
    words(
        """
    a b p div span table tr td th style script svg math mtext mi mglyph malignmark annotation-
    xml foreignObject desc title textarea xmp iframe noscript noembed noframes plaintext select
    option template form input button img image use animate set details summary video source
    object embed base meta link body html head frameset font br hr li ul pre code g path text
    defs x-y s:script
    """
    )
)
ATTRIBUTES = sorted(
    words(
        """
    href src style class id name onerror onload xlink:href xml:base srcset action formaction
    type data data-commandlinker-command title alt is slot values to attributeName encoding fill
    clip-path for background poster ping target
    """
    )
)
VALUES = [
    "x", "javascript:alert(1)", "https://x.y/z", "#a", "data:text/html,<script>", "url(#a)",
    "url(//x.y)", "position:fixed", "background:url(//x)", "</style><img src=x onerror=1>",
    "text/html",
    "\"><img src=x onerror=1>", "checkbox", "jp-Dialog a", "color:red", "--><script>1</script>",
    "]]><img src=x onerror=1>", "&lt;script&gt;", "java\tscript:1", "\x00", "`", "${x}",
    "\\75rl(//x)",
]  # fmt: skip
LOOSE = [
    "<!--", "-->", "--!>", "<![CDATA[", "]]>", "<!DOCTYPE x>", "<?x?>", "&lt;", "&#0;", "\x00", "<",
    ">",     "\"", "'", "`", "/", "$\\href{javascript:1}{x}$", "</style>", "</script>",
    "p{background:url(//x)}",
    "@import '//x';", "*{position:fixed}", "} body{display:none} x{", "/*", "*/", "\\3c ", "\u2028",
    "~ div{color:red}", ":root{--a:url(//x)}", "a:not(b,c)>d{color:red}", "\ud800",
]  # fmt: skip

value = st.sampled_from(VALUES)
attribute = st.builds("{}={}".format, st.sampled_from(ATTRIBUTES), st.one_of(
    value.map('"{}"'.format), value.map("'{}'".format), value,
))  # fmt: skip
opening = st.builds(
    lambda name, attributes, end: f"<{name} {' '.join(attributes)}{end}",
    st.sampled_from(TAGS),
    st.lists(attribute, max_size=3),
    st.sampled_from([">", "/>", " >", "", "\n>"]),
)
closing = st.sampled_from(TAGS).map("</{}>".format)
document = st.lists(
    st.one_of(opening, closing, st.sampled_from(LOOSE), st.text(max_size=8)), max_size=14
).map("".join)
seeds = st.sampled_from([
    content
    for payload in PAYLOADS
    for content in payload.armed("//x.y").data.values()
    if isinstance(content, str)
])  # fmt: skip
text = st.one_of(
    document, st.lists(st.one_of(document, seeds), min_size=2, max_size=3).map("".join)
)
json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), text), lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ), max_leaves=6,
)  # fmt: skip
bundles = st.dictionaries(
    st.one_of(st.sampled_from(sorted(MIME_RULES)), st.text(max_size=12)),
    st.one_of(text, json),
    max_size=4,
)


@given(text)
def test_markup_of_each_kind(source: str) -> None:
    html = clean_html(source, Removals())
    assert problems_in({"text/html": html}) == []
    # a page that holds the output parses it again, and so may a program that stores it
    assert problems_in({"text/html": clean_html(html, Removals())}) == []
    for svg in (f"<svg>{source}</svg>", source, f"<style>{source}</style><svg/>"):
        assert problems_in(clean({"image/svg+xml": svg}, {}, Mode.SAFE).data) == []
    for mime in ("text/markdown", "text/latex"):
        assert problems_in(clean({mime: source}, {}, Mode.SAFE).data) == []


@given(bundles, st.dictionaries(st.text(max_size=8), json, max_size=3))
def test_any_bundle(bundle: dict[str, Any], metadata: dict[str, Any]) -> None:
    safe = clean(bundle, metadata, Mode.SAFE)
    assert problems_in(safe.data) == []
    assert bool(safe.data) == bool(bundle)
    assert all(
        isinstance(value, int | float | str | bool | dict) for value in safe.metadata.values()
    )


def test_a_large_table_is_shown_and_a_large_unclosed_document_refused() -> None:
    row = "<tr>" + "<td>0.123456</td>" * 20 + "</tr>\n"
    html = f"<table class='dataframe'>\n<tbody>{row * 2000}</tbody></table>"
    assert len(html) > 8 * documents.SMALL_DOCUMENT
    assert clean_html(html, Removals()).count("<td>") == 40_000
    with pytest.raises(NotShowable, match="unclosed"):
        clean_html("<p>x" * 20_000, Removals())


def test_a_styled_table_of_20_000_cells_keeps_its_style() -> None:
    cells = [f"#T_abcde_row{row}_col{column}" for row in range(1_000) for column in range(20)]
    bar = "background: linear-gradient(90deg, transparent 36.4%, #d65f5f 36.4%, #d65f5f 54.5%)"
    for sheet in f"{', '.join(cells)} {{color: red}}", "".join(f"{c} {{{bar}}}\n" for c in cells):
        removals = Removals()
        assert f"{cells[-1][1:]} {{" in clean_html(f"<style>{sheet}</style><b>x</b>", removals)
        assert removals.phrases == ()


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
