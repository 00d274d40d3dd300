"""Figures of libraries that draw by a script: the part that `safe` mode can show."""

from __future__ import annotations

from tests.faces import traceback_of
from wasm_kernel import BaseSandbox
from wasm_kernel.outputs.bundle import Mode, clean

ANIMATION = """
import base64, io, re
from IPython.display import HTML
from PIL import Image
from matplotlib import pyplot
from matplotlib.animation import FuncAnimation
figure, axes = pyplot.subplots(figsize=(1, 1))
[line] = axes.plot([0, 1])
moving = FuncAnimation(figure, lambda n: line.set_ydata([n, 1]), frames=3, interval=100)
page = moving.to_jshtml()
pyplot.close(figure)
picture = re.search('<img src="data:image/png;base64,([^"]+)"', page)[1]
with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
    print(image.n_frames, image.info["duration"], image.info["loop"], end="")
    first, last = (image.seek(n) or image.convert("L").tobytes() for n in (0, 2))
    print("", first != last)
HTML(page)
"""


SCHEMAS = """
import nbformat, jsonschema
from nbformat import v4
nbformat.validate(v4.new_notebook(cells=[v4.new_code_cell("1")]))
schema = {"$defs": {"n": {"type": "integer"}}, "additionalProperties": {"$ref": "#/$defs/n"}}
jsonschema.validate({"a": 1}, schema)
try:
    jsonschema.validate({"a": "1"}, schema)
except jsonschema.ValidationError as problem:
    print(problem.message)
"""


def test_schemas_that_plotly_and_altair_check_figures_with_are_there(
    module_sandbox: BaseSandbox,
) -> None:
    result = module_sandbox.execute(SCHEMAS)
    assert result.stdout == "'1' is not of type 'integer'\n", result.error


def test_a_film_says_how_an_animation_is_shown(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(f"{ANIMATION}\nmoving.to_html5_video()")
    assert "to_jshtml" in "".join(traceback_of(result))


def test_an_animation_moves_without_its_script(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(ANIMATION)
    assert result.stdout == "3 100.0 0 True\n"
    [shown] = [output.data for output in result.outputs if "text/html" in output.data]
    safe = clean(shown, {}, Mode.SAFE)
    assert safe.removed == ()
    page = safe.data["text/html"]
    assert '<img src="data:image/png;base64,' in page
    assert ".anim-controls {display: none}" in page
    assert "<script" not in page


def test_a_notebook_that_asks_for_figures_with_a_script_runs_on(
    module_sandbox: BaseSandbox,
) -> None:
    code = "%matplotlib widget\nimport matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    result = module_sandbox.execute(code)
    assert "drawn inline instead" in result.stderr
    assert [output.data for output in result.outputs if "image/png" in output.data]


NAMED_FILES = {
    'HTML(\'<p><img alt="x" src="red dot.png"></p>\')': '<p><img alt="x" src="{red}"></p>',
    "HTML(\"<IMG\\n src = 'red%20dot.png'><img src='x.png'>\")": (
        "<IMG\n src = \"{red}\"><img src='x.png'>"
    ),
    'Markdown(\'![a](dot.png "t") `![](dot.png)` ![](/x.png) <img src="/app/dot.png">\')': (
        '![a]({red} "t") `![](dot.png)` ![](/x.png) <img src="{red}">'
    ),
    "Image(url='dot.png')": '<img src="{red}"/>',
    "HTML('<img src=\"large.png\">')": '<img src="large.png">',
    'HTML(\'<a href="dot.png">a</a> <img src="https://x.y/dot.png">\')': (
        '<a href="dot.png">a</a> <img src="https://x.y/dot.png">'
    ),
}
MAKE_FILES = """
from IPython.display import HTML, Image, Markdown, Video
import PIL.Image
for name in ("dot.png", "red dot.png"):
    PIL.Image.new("RGB", (1, 1), "red").save(name)
open("film.mp4", "wb").write(b"\\0\\0\\0\\x18ftypmp42")
open("large.png", "wb").write(open("dot.png", "rb").read() + bytes(8_000_000))
__import__("base64").b64encode(open("dot.png", "rb").read()).decode()
"""


def test_files_that_an_output_names_are_in_the_output(module_sandbox: BaseSandbox) -> None:
    """Before, they were left out: a page reaches no file of the session."""
    made = module_sandbox.execute(MAKE_FILES)
    red = f"data:image/png;base64,{made.outputs[0].data['text/plain'][1:-1]}"
    for code, text in NAMED_FILES.items():
        data = module_sandbox.execute(code).outputs[0].data
        assert data.get("text/html", data.get("text/markdown")) == text.replace("{red}", red)
    film = module_sandbox.execute("Video('film.mp4')").outputs[0].data
    assert 'src="data:video/mp4;base64,AAAAGGZ0eXBtcDQy"' in film["text/html"]
    assert clean(film, {}, Mode.SAFE).removed == ()
