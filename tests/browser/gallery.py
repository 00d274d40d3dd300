"""Some thirty everyday outputs, each with the source of its cell."""

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
    "dataframe_index": "frame.assign(k=list('xxyyzz')).groupby('k').agg(['mean', 'max'])",
    "styler": "frame.style.background_gradient(axis=None).format('{:.2f}').set_caption('Colours')"
    ".set_uuid('u1')",
    "styler_sticky": "frame.style.set_sticky(axis=0).set_uuid('u3').hide(axis='index')"
    ".set_tooltips(frame.astype(str))",
    "figure": "plt.plot(frame.a, label='a'); plt.legend(); plt.title('$x^2$ < y & z');",
    "figure_svg": "from matplotlib_inline.backend_inline import set_matplotlib_formats\n"
    "set_matplotlib_formats('svg')\nfig, ax = plt.subplots()\nax.imshow(frame.values)\n"
    "ax.text(0.5, 0.5, 'text'); plt.show(); set_matplotlib_formats('png')",
    "seaborn": "import seaborn as sns\nsns.heatmap(frame, annot=True, cmap='viridis');",
    "sympy": "import sympy\nx = sympy.Symbol('x')\nsympy.Integral(1 / x, (x, 1, sympy.oo))",
    "sklearn": "from sklearn.pipeline import make_pipeline\n"
    "from sklearn.compose import make_column_transformer\n"
    "from sklearn.preprocessing import StandardScaler, OneHotEncoder\n"
    "from sklearn.linear_model import LogisticRegression\n"
    "make_pipeline(make_column_transformer((StandardScaler(), ['a']), (OneHotEncoder(), ['b'])),"
    " LogisticRegression())",
    "html": "HTML(\"<h3>Title</h3><p style='color:teal'>Text, <b>bold</b>, <code>code</code>, "
    "<a href='https://example.org'>a link</a></p><ul><li>one<li>two</ul>"
    '<details open><summary>More</summary>inside</details>")',
    "markdown_rich": "Markdown('## Sum\\n\\n$\\\\sum_{i=1}^n a_i < b$ and "
    '<span style="color:red">red</span>\\n\\n$$\\\\frac{a}{b}$$\\n\\n[link](https://example.org)\')',
    "latex": "Latex(r'$\\alpha^2 + \\frac{\\beta}{\\gamma} < \\infty$')",
    "json": "JSON({'a': [1, 2, {'b': None}], 'text': '<b>x</b>'}, expanded=True)",
    "code": "Code('def f(x):\\n    return x + 1  # comment', language='python')",
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
    "image_html": "from io import BytesIO\nimport base64\nheld = BytesIO()\n"
    "PIL.Image.new('RGB', (60, 30), 'teal').save(held, 'png')\n"
    "HTML(f'<img width=120 src=\"data:image/png;base64,'"
    "f'{base64.b64encode(held.getvalue()).decode()}\">')",
    "tqdm_notebook": "from tqdm.notebook import tqdm as bar_of\n"
    "for _ in bar_of(range(3), bar_format='{l_bar}{bar}|'): pass",
    "sliders": "import ipywidgets as w\nw.VBox([w.IntSlider(5, description='whole'), "
    "w.FloatRangeSlider(value=[2, 7], description='range'), w.FloatLogSlider(description='log')])",
    "fields": "w.VBox([w.Text('text', description='Text'), w.Dropdown(options=['a', 'b'], "
    "description='One of'), w.Checkbox(True, description='Yes'), w.DatePicker(description='Day'), "
    "w.ColorPicker(value='#336699', description='Colour'), w.IntText(7, description='Number')])",
    "buttons": "w.HBox([w.Button(description='Go', icon='check', button_style='success'), "
    "w.ToggleButtons(options=['one', 'two'], description='Which'), w.Valid(value=True)])",
    "folded": "w.Accordion([w.IntProgress(7, max=10), w.Label('$x^2$')], titles=['a', 'b'], "
    "selected_index=0)",
    "interactive": "w.interactive(lambda x=3: print('square', x * x), x=(0, 10))",
    "captured": "seen = w.Output(layout=w.Layout(border='1px solid gray'))\n"
    "with seen: display(frame.head(2)); print('inside')\nseen",
    "error": "1 / 0",  # the last one, as it ends the run
}
