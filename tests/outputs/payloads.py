"""Outputs that would run a script, ask a server for something or leave their place in the page.

They follow the families in public cheat sheets, one entry for each kind of attack. `RUN` stands for
a script that leaves a mark in the page, `URL` for the address of a server that records its
requests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.outputs.chart_payloads import CHARTS

RUN = "@@RUN@@"
URL = "@@URL@@"
HTML, SVG, MD, TEX = "text/html", "image/svg+xml", "text/markdown", "text/latex"


@dataclass(frozen=True)
class Payload:
    """One attack: a name, and a bundle with its metadata."""

    name: str
    data: dict[str, Any]
    metadata: dict[str, Any]

    def armed(self, server: str) -> Payload:
        """The payloads with a script and an address that tell which payload got through."""
        # without quotes, so that it fits wherever a payload puts it
        script = f"void(top.pwned_{self.name}=1)"

        def arm(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace(RUN, script).replace(URL, f"{server}/{self.name}")
            if isinstance(value, list):
                return [arm(item) for item in value]
            if isinstance(value, dict):
                return {key: arm(item) for key, item in value.items()}
            return value

        data = {mime: _encoded(mime, arm(content)) for mime, content in self.data.items()}
        return Payload(self.name, data, arm(self.metadata))


def _encoded(mime: str, content: Any) -> Any:
    """Encodes payloads in base64, which are plain text above."""
    if isinstance(content, str) and "base64:" in content:
        head, _, rest = content.partition("base64:")
        inner, _, tail = rest.partition(":end")
        return head + base64.b64encode(inner.encode()).decode() + tail
    return content


_HTML = {
    # scripts
    "script": "<script>RUN</script>",
    "script_src": "<script src=URL.js></script>",
    "script_nested": "<scr<script>ipt>RUN</scr</script>ipt>",
    "script_after_comment": "<!--><script>RUN</script>-->",
    "script_after_bang_comment": "<!-- --!><script>RUN</script> -->",
    "script_in_table": "<table><script>RUN</script><tr><td>x</td></tr></table>",
    "script_in_template": "<template><script>RUN</script></template>",
    "script_shadow": "<div><template shadowrootmode=open><script>RUN</script></template></div>",
    "script_nul": "<\0script>RUN</script><scr\0ipt>RUN</script>",
    "script_utf7": "+ADw-script+AD4-RUN+ADw-/script+AD4-",
    # event handlers
    "img_onerror": "<img src=x onerror=RUN>",
    "img_onerror_quotes": '<img src="x"onerror="RUN">',
    "img_onerror_unclosed": "<img src=x onerror=RUN ",
    "body_onload": "<body onload=RUN>",
    "svg_onload": "<svg onload=RUN>",
    "input_autofocus": "<input autofocus onfocus=RUN>",
    "details_ontoggle": "<details open ontoggle=RUN>x</details>",
    "video_onerror": "<video><source onerror=RUN></video>",
    "marquee_onstart": "<marquee onstart=RUN>x</marquee>",
    "animation": "<style>@keyframes k{from{left:0}to{left:1px}}</style>"
    "<p style='animation:k 1s;position:relative' onanimationstart=RUN>x</p>",
    "transition": "<style>:hover{color:red}p{transition:color 1ms}</style>"
    "<p ontransitionend=RUN>x</p>",
    "popover": "<button popovertarget=p>x</button><p popover id=p onbeforetoggle=RUN>x</p>",
    "click_anything": "<div onclick=RUN style='position:fixed;inset:0;z-index:99999'>x</div>",
    "custom_element": "<x-y onclick=RUN tabindex=0 autofocus onfocus=RUN>x</x-y>",
    "style_onload": "<style onload=RUN>x{}</style>",
    "handler_case": "<img src=x OnErRoR=RUN>",
    # links and navigation
    "link_js": "<a href=javascript:RUN>click</a>",
    "link_js_case": "<a href=' JaVaScRiPt:RUN'>click</a>",
    "link_js_entity": "<a href='java&#115;cript&colon;RUN'>click</a>",
    "link_js_control": "<a href='\x01javascript:RUN'>click</a>",
    "link_data": "<a href='data:text/html,<script>RUN</script>'>click</a>",
    "link_relative": "<a href=/logout>click</a>",
    "link_ping": "<a href=#x ping=URL>click</a>",
    "link_area": "<map name=m><area shape=default href=javascript:RUN></map>"
    "<img usemap=#m src=x width=99 height=99>",
    "base_href": "<base href=URL/><a href=x>click</a>",
    "meta_refresh": "<meta http-equiv=refresh content='0;url=javascript:RUN'>",
    "meta_refresh_url": "<meta http-equiv=refresh content='0;url=URL'>",
    "form_action": "<form action=javascript:RUN><input type=submit value=click></form>",
    "button_formaction": "<form><button formaction=javascript:RUN>click</button></form>",
    "input_image": "<form><input type=image src=URL.png formaction=javascript:RUN></form>",
    # other documents
    "iframe_js": "<iframe src=javascript:RUN></iframe>",
    "iframe_srcdoc": "<iframe srcdoc='<script>parent.RUN</script><script>RUN</script>'></iframe>",
    "object_data": "<object data='data:text/html,<script>RUN</script>'></object>",
    "embed_js": "<embed src=javascript:RUN>",
    "frameset": "<frameset onload=RUN><frame src=javascript:RUN></frameset>",
    "portal": "<portal src=URL></portal><fencedframe src=URL></fencedframe>",
    # fetching
    "img_remote": "<img src=URL.png>",
    "img_scheme_relative": "<img src=//127.0.0.1:1/x.png>",
    "img_srcset": "<img srcset='URL.png 1x, URL.png 2x'>",
    "picture": "<picture><source srcset=URL.png><img src=data:,></picture>",
    "video_poster": "<video poster=URL.png></video>",
    "audio_remote": "<audio src=URL autoplay></audio>",
    "track": "<video><track default src=URL></video>",
    "table_background": "<table background=URL.png><tr><td background=URL.png>x</table>",
    "body_background": "<body background=URL.png>",
    "link_stylesheet": "<link rel=stylesheet href=URL.css>",
    "link_preload": "<link rel=preload as=image href=URL.png><link rel=prefetch href=URL>",
    "style_import": "<style>@import 'URL.css';</style>",
    "style_background": "<style>*{background:url(URL.png)}</style><p>x</p>",
    "style_escape": "<style>p{background:u\\72l(URL.png)}</style><p>x</p>",
    "style_image_set": "<style>p{background-image:image-set('URL.png' 1x)}</style><p>x</p>",
    "style_font": "<style>@font-face{font-family:f;src:url(URL.woff)}p{font-family:f}</style>"
    "<p>x</p>",
    "style_variable": "<style>:root{--u:url(URL.png)}p{background:var(--u)}</style><p>x</p>",
    "style_leak": "<style>input[value^=a]{background:url(URL.png)}</style><input value=abc>",
    "style_content": "<style>p::before{content:url(URL.png)}</style><p>x</p>",
    "style_mask": "<p style='mask:url(URL.svg#m);-webkit-mask-image:url(URL.png)'>x</p>",
    "style_filter": "<p style='filter:url(URL.svg#f)'>x</p>",
    "style_inline": "<p style=\"background:url('URL.png')\">x</p>",
    "style_nested": "<style>p{&{background:url(URL.png)}}</style><p>x</p>",
    "style_supports": "<style>@supports(color:red){p{background:url(URL.png)}}</style><p>x</p>",
    "style_property": "<style>@property --a{syntax:'<image>';inherits:true;"
    "initial-value:url(URL.png)}</style>",
    "style_binding": "<p style='-moz-binding:url(URL#x);behavior:url(URL)'>x</p>",
    "style_expression": "<p style='width:expression(RUN)'>x</p>",
    "style_hides_input": '<style><input x="</style><img src=x onerror=RUN>">',
    "style_end": "<style>p{content:'</style><img src=x onerror=RUN>'}</style>",
    "style_end_string": "<style>p{content:'\\3c/style>\\3cimg src=x onerror=RUN>'}</style><p>x",
    # parsers that disagree
    "mxss_svg_style": '<svg></p><style><a id="</style><img src=1 onerror=RUN>">',
    "mxss_math": '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;'
    '&lt;img src=1 onerror=RUN&gt;">',
    "mxss_form": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=RUN>",
    "mxss_noscript": '<noscript><p title="</noscript><img src=x onerror=RUN>">',
    "mxss_title": '<title><a title="</title><img src=x onerror=RUN>">',
    "mxss_textarea": '<textarea><a title="</textarea><img src=x onerror=RUN>">',
    "mxss_iframe": '<svg><iframe><a title="</iframe><img src=x onerror=RUN>">',
    "mxss_select": "<select><style></select><img src=x onerror=RUN></style>",
    "mxss_svg_title": '<svg><title><style><a title="</style><img src=x onerror=RUN>">',
    "mxss_foreign": '<svg><foreignObject><style><a title="</style><img src=x onerror=RUN>">',
    "mxss_cdata": '<svg><![CDATA[><image xlink:href="]]><img src=x onerror=RUN>"></svg>',
    "mxss_desc": "<svg><desc><![CDATA[</desc><script>RUN</script>]]></svg>",
    "mxss_annotation": "<math><annotation-xml encoding=text/html><style><img src=x onerror=RUN>"
    "</style></annotation-xml></math>",
    "mxss_comment": "<svg><a><!--</a><img src=x onerror=RUN>-->",
    "mxss_plaintext": '<svg><plaintext><a title="<img src=x onerror=RUN>">',
    "mxss_backtick": "<img alt=``onerror=RUN src=x>",
    "mxss_attribute": "<p title='\"><img src=x onerror=RUN>'>x</p>",
    # SVG and MathML inside HTML
    "svg_script": "<svg><script>RUN</script></svg>",
    "svg_animate": "<svg><a><animate attributeName=href values=javascript:RUN /><text x=9 y=20>"
    "click</text></a></svg>",
    "svg_set": "<svg><set onbegin=RUN attributeName=x to=1></svg>",
    "svg_link": "<svg><a xlink:href=javascript:RUN><text x=9 y=20>click</text></a></svg>",
    "svg_use": "<svg><use href=\"data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'>"
    "<image href='1' onerror='RUN'/></svg>#x\"/></svg>",
    "svg_use_remote": "<svg><use href='URL.svg#x'/></svg>",
    "svg_image": "<svg><image href=URL.png width=9 height=9 onerror=RUN></svg>",
    "svg_feimage": "<svg><filter id=f><feImage href=URL.png /></filter>"
    "<rect filter=url(#f) /></svg>",
    "svg_fill": "<svg><rect fill='url(URL.svg#g)' width=9 height=9 /></svg>",
    "svg_foreign": "<svg><foreignObject><body onload=RUN><iframe src=javascript:RUN></svg>",
    "svg_handler": "<svg><handler type='text/javascript' ev:event='load'>RUN</handler></svg>",
    "math_href": "<math href=javascript:RUN><mtext>click</mtext></math>",
    "math_action": "<math><maction actiontype=toggle xlink:href=javascript:RUN>click</maction>",
    # text that a browser may take for a list of further addresses
    "playlist_audio": "<audio controls preload=auto src='data:audio/mpegurl;base64,base64:"
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nURL.ts\n#EXT-X-ENDLIST\n:end'></audio>",
    "playlist_disguised": "<video controls preload=auto src='data:video/mp4;base64,base64:"
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nURL.ts\n#EXT-X-ENDLIST\n:end'></video>",
    "playlist_source": "<video controls preload=auto><source type='application/x-mpegurl' "
    "src='data:audio/x-mpegurl;base64,base64:#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n"
    "URL.m3u8\n:end'></video>",
    "manifest": "<video controls preload=auto src='data:video/vnd.mpeg.dash.mpd;base64,base64:"
    "<MPD><BaseURL>URL</BaseURL></MPD>:end'></video>",
    # more parsers that disagree
    "mxss_font": '<svg><font><style><a title="</style><img src=x onerror=RUN>">',
    "mxss_font_color": '<svg><font color=x><style><a title="</style><img src=x onerror=RUN>">',
    "mxss_deep": "<div>" * 520 + '<svg><style><a title="</style><img src=x onerror=RUN>">',
    "mxss_table_svg": '<table><svg><style><tr title="</style><img src=x onerror=RUN>">',
    "mxss_use": '<svg><use><style><!--</use><img title="--></style><img src=x onerror=RUN>">',
    "mxss_symbol": "<svg><symbol><style>/*</symbol><![CDATA[*/</style><img src=x onerror=RUN>]]>",
    "mxss_caption": '<table><caption><svg><style></caption><a title="</style>'
    '<img src=x onerror=RUN>">',
    "mxss_text": "<svg><text><![CDATA[</text></svg><img src=x onerror=RUN>]]></text></svg>",
    "mxss_switch": '<svg><switch><a><style><![CDATA[</style><img title="]]>"><img src=x '
    "onerror=RUN>",
    "select_customized": "<select><button><selectedcontent></selectedcontent></button><option>"
    "<img src=x onerror=RUN></option></select>",
    "image_in_html": "<image src=x onerror=RUN><image href=URL.png>",
    "processing": "<?php <img src=x onerror=RUN> ?><!ELEMENT <img src=x onerror=RUN>>",
    "nested_svg_image": "<img src='data:image/svg+xml;base64,base64:<svg "
    'xmlns="http://www.w3.org/2000/svg"><foreignObject><img xmlns="http://www.w3.org/1999/xhtml" '
    'src="URL.png" onerror="RUN"/></foreignObject></svg>:end\'>',
    "speculation": '<script type=speculationrules>{"prefetch":[{"urls":["URL"]}]}</script>',
    "style_shorthand": "<p style='background:x,url(URL.png);border-image:url(URL.png) 1'>x</p>",
    "style_local_image": "<p style='background:url(#x);list-style-image:url(#x)'>x</p>"
    "<style>p{cursor:url(#x),auto}</style>",
    "style_paint_remote": "<svg width=9 height=9><path d='M0 0h9v9z' style='fill:url(URL.svg#x);"
    'clip-path:url("URL.svg#c")\'/></svg>',
    "style_attr": "<p title=URL.png style='background:attr(title type(<url>))'>x</p>",
    "style_charset": "<style>@charset 'x';@namespace url(URL);@font-feature-values f{}"
    "@view-transition{navigation:auto}p{color:red}</style>",
    # the page around the output
    "cover_svg": "<svg overflow=visible width=1 height=1><rect x=-5000 y=-5000 width=10000 "
    "height=10000 fill=red></rect></svg>",
    "cover_svg_text": "<svg overflow=visible width=1 height=1><text x=-3000 y=0 font-size=9000 "
    "fill=red>\u2588\u2588\u2588</text></svg>",
    "cover_custom_position": "<style>:root{--p:fixed}p{position:var(--p);inset:0;background:red}"
    "</style><p>x</p>",
    "restyle_has": "<style>:has(body){display:none}:is(html,body) .jp-Cell{display:none}"
    "@scope(body){*{display:none}}@container(width>0){*{display:none}}</style>",
    "lab_command": "<button data-commandlinker-command=terminal:create-new "
    "data-commandlinker-args='{}'>click</button>",
    "lab_command_link": "<a data-commandlinker-command=terminal:create-new>click</a>",
    "lab_classes": "<div class='jp-Dialog lm-Widget jp-mod-styled'>"
    "<div class=jp-Dialog-content>x</div></div>",
    "clobber_id": "<a id=jupyter-config-data></a><img name=cookie><form name=body></form>",
    "clobber_window": "<a id=MathJax></a><a id=MathJax name=version href=URL></a>",
    "cover_fixed": "<p style='position:fixed;inset:0;z-index:2147483647;background:red'>x</p>",
    "cover_sheet": "<style>.c{position:fixed!important;top:0;left:0;width:100vw;height:100vh;"
    "z-index:99999;background:red}</style><p class=c>x</p>",
    "cover_shadow": "<p style='box-shadow:0 0 0 9999px red'>x</p>",
    "cover_margin": "<p style='margin:-9999px;padding:9999px;background:red'>x</p>",
    "cover_transform": "<p style='transform:scale(500);background:red'>x</p>",
    "restyle_page": "<style>body,html,#main,.jp-Notebook{display:none!important}</style>",
    "restyle_star": "<style>*{display:none!important}</style>",
    "restyle_sibling": "<style>~ div,+ *,> *{display:none!important}</style>",
    "restyle_breakout": "<style>} body{display:none} p{</style>",
    "restyle_root": "<style>:root{display:none!important;--jp-layout-color0:red}</style>",
    "restyle_box": "<style>:root{position:fixed!important;contain:none!important;inset:0}</style>",
    # formulas in HTML
    "tex_href": "<p>$\\href{javascript:RUN}{click}$</p>",
    "tex_bbox": "<p>$\\bbox[cursor:url(URL.cur),auto]{hover}$</p>",
    "tex_font": "<p>$\\unicode[x;background:url(URL.png)]{65}$</p>",
    "tex_font_break": "<p>$\\unicode<br>[x;background:url(URL.png)]{65}$</p>",
    "tex_font_second": "<p>$\\unicode[.5,.5][x;background:url(URL.png)]{65}$</p>",
    "tex_cover": "<p>$\\rlap{\\kern-80em\\color{red}\\rule[-200em]{400em}{400em}}$</p>",
    "tex_split": "<p>$\\hr<wbr>ef{javascript:RUN}{click}$</p>",
}

_BARE_SVG = {
    "doc_script": "<svg xmlns='http://www.w3.org/2000/svg'><script>RUN</script></svg>",
    "doc_onload": "<svg xmlns='http://www.w3.org/2000/svg' onload='RUN'/>",
    "doc_foreign": "<svg xmlns='http://www.w3.org/2000/svg'><foreignObject width='9' height='9'>"
    "<iframe xmlns='http://www.w3.org/1999/xhtml' src='javascript:RUN'/></foreignObject></svg>",
    "doc_image": "<svg xmlns='http://www.w3.org/2000/svg'><image href='URL.png' width='9'/></svg>",
    "doc_prefix": "<s:svg xmlns:s='http://www.w3.org/2000/svg'><s:script>RUN</s:script></s:svg>",
    "doc_prefix_inside": "<svg xmlns='http://www.w3.org/2000/svg' xmlns:h="
    "'http://www.w3.org/1999/xhtml'><h:img src='x' onerror='RUN'/><h:script>RUN</h:script></svg>",
    "doc_sheet": "<?xml-stylesheet href='URL.css'?><svg xmlns='http://www.w3.org/2000/svg'/>",
    "doc_entity": "<!DOCTYPE svg [<!ENTITY x '<script>RUN</script>'>]>"
    "<svg xmlns='http://www.w3.org/2000/svg'>&x;</svg>",
    "doc_style": "<svg xmlns='http://www.w3.org/2000/svg'><style>@import 'URL.css';"
    "*{fill:url(URL.svg#x)}</style><rect width='9' height='9'/></svg>",
    "doc_hidden_in_style": "<style><svg><script>RUN</script></svg></style>",
    "doc_no_svg": "<script>RUN</script><p>x</p>",
    "doc_two": "<svg/><img src=x onerror=RUN><svg/>",
    "doc_animated_link": "<svg xmlns='http://www.w3.org/2000/svg'><a><rect width='99' height='99'/>"
    "<set attributeName='href' to='javascript:RUN'/></a></svg>",
}

_MARKDOWN = {
    "md_html": "<img src=x onerror=RUN>",
    "md_block": "<div>\n\n<script>RUN</script>\n\n</div>",
    "md_link": "[click](javascript:RUN)",
    "md_link_entity": "[click](java&#115;cript:RUN)",
    "md_link_data": "[click](data:text/html;base64,base64:<script>RUN</script>:end)",
    "md_reference": "[click][a]\n\n[a]: javascript:RUN",
    "md_autolink": "<javascript:RUN>",
    "md_image": "![x](URL.png)",
    "md_fence": '```python"onmouseover="RUN"style="position:fixed;inset:0\nx\n```',
    "md_fence_tag": '~~~x"><img/src=x/onerror=RUN>\nx\n~~~',
    "md_formula_title": '[click](x \'$" onmouseover="RUN" style="position:fixed;inset:0" y="$\')',
    "md_formula_marker": '@@0@@ [click](@@1@@) $x$ $"onmouseover="RUN$',
    "md_formula_href": "$\\href{javascript:RUN}{click}$",
    "md_code_break": "`<img src=x onerror=RUN>` <img src=x onerror=RUN>",
    "md_comment": "<!-- x --!> <img src=x onerror=RUN> -->",
    "md_mermaid": '```mermaid\ngraph LR\nA-->B\nclick A "javascript:RUN"\n```',
    "md_directive": ":::{iframe} URL\n:::\n\n:::{image} URL.png\n:::",
    "md_role": "{jp-Dialog}`x` # x {#main .jp-Dialog onclick=RUN}",
    "md_heading": "# main\n\n## jupyter-config-data\n\n# jp-main-dock-panel",
    "md_footnote": "x[^1]\n\n[^1]: <img src=x onerror=RUN>",
    "md_fence_quoted": '> ```js" onmouseover="RUN\n> x\n> ```',
    "md_table": "|a|\n|-|\n|<img src=x onerror=RUN>|",
}

_TEX = {
    "tex_doc_href": "$\\href{javascript:RUN}{\\text{click}}$",
    "tex_doc_let": "$\\let\\x=\\href \\x{javascript:RUN}{\\text{click}}$",
    "tex_doc_def": "$\\def\\x{\\href}\\x{javascript:RUN}{\\text{click}}$",
    "tex_doc_html": "$<img src=x onerror=RUN>$<script>RUN</script>",
    "tex_doc_style": "$\\style{position:fixed;inset:0;background:url(URL.png)}{x}$",
    "tex_doc_class": "$\\class{jp-Dialog}{x}\\cssId{main}{y}$",
    "tex_doc_require": "$\\require{html}\\href{javascript:RUN}{\\text{click}}$",
    "tex_doc_data": "$\\data{commandlinker-command=terminal:create-new}{\\text{click}}$",
    "tex_doc_token": "$\\mmlToken{mi}[href='javascript:RUN']{click}$",
    "tex_doc_include": "$\\includegraphics{URL.png}$",
    "tex_doc_bbox": "$\\bbox[cursor:url(URL.cur),auto]{\\text{hover}}$",
    "tex_doc_bbox_brace": "$\\bbox [{]},cursor:url(URL.cur),auto] {\\text{hover}}$",
    "tex_doc_cover": "$\\rlap{\\kern-80em\\color{red}\\rule[-200em]{400em}{400em}}$",
    "tex_doc_delimiter": "$\\DeclarePairedDelimiter{\\beta}{\\text{spoilt}}{.}$",
    "tex_doc_tagform": "$\\newtagform{x}{\\href{URL}}{}\\usetagform{x}\\tag{1}$",
    "tex_doc_tip": "$\\mathtip{x}{\\href{javascript:RUN}{y}}\\texttip{x}{<img src=x onerror=RUN>}$",
    "tex_doc_unicode": "$\\unicode[x;background:url(URL.png)]{65}$",
    "tex_doc_unicode_mark": "$\\unicode\ufeff[x;background:url(URL.png)]{66}$",
    "tex_doc_enclose": "$\\enclose{box}[style='cursor:url(URL.cur)',"
    "mathbackground='url(URL.png)']{x}$",
    "tex_doc_colour": "$\\color{red;background:url(URL.png)}{x}\\colorbox{url(URL.png)}{x}$",
    "tex_doc_redefine": "$\\renewcommand{\\alpha}{\\text{spoilt}}$",
}

_OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "js": ({"application/javascript": "RUN"}, {}),
    "js_text": ({"text/javascript": "RUN"}, {}),
    "js_ecma": ({"application/ecmascript": "RUN", "text/ecmascript": "RUN"}, {}),
    "js_parameter": ({"application/javascript; charset=utf-8": "RUN"}, {}),
    "xhtml": ({"application/xhtml+xml": "<script>RUN</script>"}, {}),
    "unknown": ({"application/x-unknown": "<script>RUN</script>"}, {}),
    "html_case": ({"TEXT/HTML": "<img src=x onerror=RUN>"}, {}),
    "html_parameter": ({"text/html;x=y": "<img src=x onerror=RUN>"}, {}),
    "isolated": (
        {HTML: "<p title='</p><script>RUN</script>'>x</p><script>RUN</script>"},
        {HTML: {"isolated": True}, "isolated": True},
    ),
    "png_quote": ({"image/png": "x\" onerror=\"RUN\" x=\""}, {}),
    "png_is_html": ({"image/png": "base64:<script>RUN</script>:end"}, {}),
    "png_width": (
        {"image/png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
         "awAAAABJRU5ErkJggg=="},
        {"image/png": {"width": "1\" onload=\"RUN", "height": {"x": 1}, "onload": "RUN"}},
    ),
    "svg_is_json": ({"application/svg+json": "<svg onload=RUN>"}, {}),
    "geojson": (
        {"application/geo+json": {"type": "Feature", "geometry": {"type": "Point", "coordinates":
            [0, 0]}, "properties": {"x": "<img src=x onerror=RUN>"}}},
        {"application/geo+json": {"url_template": "URL/{z}"}},
    ),
    "pdf": ({"application/pdf": "base64:%PDF-1.4 1 0 obj<</OpenAction<</URI(URL)>>>>:end"}, {}),
    "mermaid": ({"text/vnd.mermaid": "graph LR\nA-->B\nclick A \"javascript:RUN\""}, {}),
    "bokeh": ({"application/vnd.bokehjs_exec.v0+json": "", "application/javascript": "RUN"}, {}),
    "widget_view": (
        {"application/vnd.jupyter.widget-view+json": {
            "model_id": "<img src=x onerror=RUN>", "version_major": 2, "version_minor": 0}}, {},
    ),
    "widget_state": (
        {"application/vnd.jupyter.widget-state+json": {"state": {"x": {
            "model_module": "URL", "model_name": "X", "model_module_version": "1"}}}}, {},
    ),
    "error_type": ({"application/vnd.jupyter.stderr": "<script>RUN</script>"}, {}),
    "plain": ({"text/plain": "<script>RUN</script>\x1b]8;;javascript:RUN\x07x\x1b]8;;\x07"}, {}),
    "json": ({"application/json": {"<img src=x onerror=RUN>": "<script>RUN</script>"}}, {}),
}  # fmt: skip


def _written(text: Any) -> Any:
    """Puts the script and the address in the place of RUN and URL in the tables above."""
    raw = json.dumps(text).replace("RUN", RUN).replace("URL", URL)
    return json.loads(raw)


def _all() -> Iterator[Payload]:
    for mime, table in ((HTML, _HTML), (SVG, _BARE_SVG), (MD, _MARKDOWN), (TEX, _TEX)):
        for name, content in table.items():
            yield Payload(name, {mime: _written(content)}, {})
    for name, (data, metadata) in (_OTHER | CHARTS).items():
        yield Payload(name, _written(data), _written(metadata))


PAYLOADS = tuple(_all())
