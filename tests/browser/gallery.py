"""Some forty everyday outputs, each with the source of its cell."""

from __future__ import annotations

BEGIN = """
import warnings; warnings.showwarning = lambda *args, **kwargs: None
import numpy as np, pandas as pd, matplotlib.pyplot as plt
from IPython.display import *
plt.rcParams['figure.figsize'] = (4, 2.5)
numbers = np.random.default_rng(7)
frame = pd.DataFrame(numbers.normal(size=(6, 4)), columns=list('abcd'))
"""

GALLERY = {
    "dataframe": "frame",
    "dataframe_wide": "pd.DataFrame(np.arange(200).reshape(5, 40))",
    "dataframe_index": "frame.assign(k=list('xxyyzz')).groupby('k').agg(['mean', 'max'])",
    "styler": "frame.style.background_gradient(axis=None).format('{:.2f}').set_caption('Colours')"
    ".set_uuid('u1')",
    "styler_bars": "frame.style.bar(align='mid', color=['#d65f5f', '#5fba7d']).set_uuid('u2')"
    ".highlight_max(props='font-weight:bold;color:white;background-color:darkblue')"
    ".set_table_styles([{'selector': 'th', 'props': 'text-align:left;border:1px solid gray'}])",
    "styler_sticky": "frame.style.set_sticky(axis=0).set_uuid('u3').hide(axis='index')"
    ".set_tooltips(frame.astype(str))",
    "figure": "plt.plot(frame.a, label='a'); plt.legend(); plt.title('$x^2$ < y & z');",
    "figure_svg": "from matplotlib_inline.backend_inline import set_matplotlib_formats\n"
    "set_matplotlib_formats('svg')\nfig, ax = plt.subplots()\nax.imshow(frame.values)\n"
    "ax.text(0.5, 0.5, 'text'); plt.show(); set_matplotlib_formats('png')",
    "seaborn": "import seaborn as sns\nsns.heatmap(frame, annot=True, cmap='viridis');",
    "networkx": "import networkx as nx\n"
    "nx.draw(nx.karate_club_graph(), pos=nx.circular_layout(nx.karate_club_graph()))",
    "sympy": "import sympy\nx = sympy.Symbol('x')\nsympy.Integral(1 / x, (x, 1, sympy.oo))",
    "sympy_matrix": "sympy.Matrix([[x, x ** 2], [sympy.sin(x) / 2, 3]])",
    "sklearn": "from sklearn.pipeline import make_pipeline\n"
    "from sklearn.compose import make_column_transformer\n"
    "from sklearn.preprocessing import StandardScaler, OneHotEncoder\n"
    "from sklearn.linear_model import LogisticRegression\n"
    "make_pipeline(make_column_transformer((StandardScaler(), ['a']), (OneHotEncoder(), ['b'])),"
    " LogisticRegression())",
    "statsmodels": "import statsmodels.api as sm\n"
    "fit = sm.OLS(frame.a, frame[['b', 'c']]).fit()\nHTML(fit.summary().tables[1].as_html())",
    "html": "HTML(\"<h3>Title</h3><p style='color:teal'>Text, <b>bold</b>, <code>code</code>, "
    "<a href='https://example.org'>a link</a></p><ul><li>one<li>two</ul>"
    '<details open><summary>More</summary>inside</details>")',
    "html_sheet": 'HTML("<style>.card {border:2px solid #888; border-radius:8px; padding:8px;'
    " display:flex; gap:1em} .card > div:hover {color:red} .card b {color:purple}</style>"
    "<div class='card'><div><b>Left</b></div><div>Right</div></div>\")",
    "markdown": "Markdown('# Title\\n\\nText *with* **bold**, `code`.\\n\\n- one\\n- two\\n\\n"
    "| a | b |\\n|---|--:|\\n| 1 | 2 |\\n\\n> quote\\n')",
    "markdown_rich": "Markdown('## Sum\\n\\n$\\\\sum_{i=1}^n a_i < b$ and "
    '<span style="color:red">red</span>\\n\\n$$\\\\frac{a}{b}$$\\n\\n[link](https://example.org)\')',
    "latex": "Latex(r'$\\alpha^2 + \\frac{\\beta}{\\gamma} < \\infty$')",
    "math": "Math(r'\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}')",
    "json": "JSON({'a': [1, 2, {'b': None}], 'text': '<b>x</b>'}, expanded=True)",
    "code": "Code('def f(x):\\n    return x + 1  # comment', language='python')",
    "progress": "bar = ProgressBar(10); bar.progress = 4; bar",
    "audio": "Audio(np.sin(np.arange(4000) / 20), rate=8000)",
    "image": "import PIL.Image\nPIL.Image.fromarray((np.arange(3600).reshape(60, 60) % 256)"
    ".astype('uint8')).convert('RGB')",
    "svg": 'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 40" width="200">'
    '<defs><linearGradient id="g"><stop offset="0" stop-color="red"/>'
    '<stop offset="1" stop-color="blue"/></linearGradient></defs>'
    '<rect width="100" height="40" fill="url(#g)"/><text x="10" y="25">Hello</text></svg>\')',
    "text": "print('\\x1b[31mred\\x1b[0m \\x1b[1;44mbold on blue\\x1b[0m plain')",
    "tqdm": "import sys\nfrom tqdm.auto import tqdm\n"
    "for _ in tqdm(range(3), file=sys.stdout, bar_format='{l_bar}{bar}|'): pass",
    "html_svg": "HTML(\"<svg width='120' height='40'><g transform='translate(10 5)'>"
    "<rect width='60' height='30' rx='5' style='fill:orange;stroke:black'/>"
    "<text x='8' y='20' font-size='12'>inline</text></g></svg>\")",
    "hatched_svg": "set_matplotlib_formats('svg')\n"
    "plt.bar(list('abc'), [1, 3, 2], hatch='//', color='none', edgecolor='black'); plt.show()\n"
    "set_matplotlib_formats('png')",
    "sizes": "plt.figure(figsize=(9, 2)); plt.scatter(frame.a, frame.b, c=frame.c); "
    "plt.colorbar();",
    "series": "frame.a",
    "pretty": "{'numbers': list(range(30)), 'frame': None, 'nested': {'a': [1.5, 'text']}}",
    "image_html": "from io import BytesIO\nimport base64\nheld = BytesIO()\n"
    "PIL.Image.new('RGB', (60, 30), 'teal').save(held, 'png')\n"
    "HTML(f'<img width=120 src=\"data:image/png;base64,'"
    "f'{base64.b64encode(held.getvalue()).decode()}\">')",
    "image_sized": "Image(held.getvalue(), width=90)",
    "columns": "HTML('<div style=\"display:grid;grid-template-columns:1fr 2fr;gap:8px;'"
    "'width:400px\">'"
    "'<div style=\"background:#def;padding:6px\">left</div>'"
    "'<div style=\"background:linear-gradient(90deg,#fde,#dfe);padding:6px\">right</div></div>')",
    "pre": "HTML('<pre>  a  b\\n  1  2</pre><hr><blockquote>quoted</blockquote><kbd>Ctrl</kbd>')",
    "tqdm_notebook": "from tqdm.notebook import tqdm as bar_of\n"
    "for _ in bar_of(range(3), bar_format='{l_bar}{bar}|'): pass",
    "sliders": "import ipywidgets as w\nw.VBox([w.IntSlider(5, description='whole'), "
    "w.FloatRangeSlider(value=[2, 7], description='range'), w.FloatLogSlider(description='log')])",
    "fields": "w.VBox([w.Text('text', description='Text'), w.Dropdown(options=['a', 'b'], "
    "description='One of'), w.Checkbox(True, description='Yes'), w.DatePicker(description='Day'), "
    "w.ColorPicker(value='#336699', description='Colour'), w.IntText(7, description='Number')])",
    "buttons": "w.HBox([w.Button(description='Go', icon='check', button_style='success'), "
    "w.ToggleButtons(options=['one', 'two'], description='Which'), w.Valid(value=True)])",
    "boxes": "w.Tab([w.HTML('<b>bold</b> <span style=\"color:red\">red</span>'), w.Label('b')], "
    "titles=['First', 'Second'])",
    "folded": "w.Accordion([w.IntProgress(7, max=10), w.Label('$x^2$')], titles=['a', 'b'], "
    "selected_index=0)",
    "interactive": "w.interactive(lambda x=3: print('square', x * x), x=(0, 10))",
    "captured": "seen = w.Output(layout=w.Layout(border='1px solid gray'))\n"
    "with seen: display(frame.head(2)); print('inside')\nseen",
    "error": "1 / 0",  # the last one, as it ends the run
}
