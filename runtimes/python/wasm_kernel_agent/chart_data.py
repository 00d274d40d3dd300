"""The data of figures and DataFrames beside their pictures and tables, for clients of E2B's API.

The shapes are those of E2B's template (the package `e2b_charts` and its startup scripts), whose
clients read them: a chart with its axes, ticks and points; a table as lists by column.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from math import floor, isnan, log10
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

from wasm_kernel_agent.display import jsonable

CHART, TABLE = "application/vnd.e2b.chart+json", "application/vnd.e2b.data+json"
_VALUES_MOST = 100_000  # values of one figure or table; larger ones are shown without data
_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
_DIGITS = 8

Chart = dict[str, Any]


class _DataFormatter(BaseFormatter):
    """Shows the data that a function makes of an object; nothing if it makes none, or fails."""

    def __init__(self, kind: str, data_of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.format_type = kind
        self._data_of = data_of

    format_type = Unicode("")
    print_method = ObjectName("_repr_no_method_")

    def __call__(self, shown: object) -> Any:
        try:
            return jsonable(self._data_of(shown)) or None
        except Exception:  # an extra: artists of other libraries may lack these methods
            return None


def add_formatters(shell: Any) -> None:
    """Adds the data to the shell's outputs of figures and DataFrames. Safe to call twice."""
    formatters = shell.display_formatter.formatters
    for kind, data_of in ((CHART, chart_of), (TABLE, table_of)):
        if kind not in formatters:
            formatters[kind] = _DataFormatter(kind, data_of)


def table_of(shown: Any) -> dict[Any, list[Any]] | None:
    """Returns the columns of a DataFrame as lists; None for other objects, and if it is large."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(shown, pandas.DataFrame) or shown.size > _VALUES_MOST:
        return None
    return {
        name: column.astype(object).where(column.notna(), None).tolist()
        for name, column in shown.items()
    }


def chart_of(shown: Any) -> Chart | None:
    """Returns the data of a figure of matplotlib; None for other objects, and if it is large."""
    figures = sys.modules.get("matplotlib.figure")
    if figures is None or not isinstance(shown, figures.Figure):
        return None
    axes = shown.get_axes()
    if not any(each.has_data() for each in axes):
        return None
    if sum(_size(each) for each in axes) > _VALUES_MOST:
        return None
    if len(axes) == 1:
        return _chart(axes[0])
    elements = [_chart(each) for each in axes]
    return {"type": "superchart", "title": shown.get_suptitle(), "elements": elements}


def _size(axes: Any) -> int:
    points = [len(each.get_xdata(orig=False)) for each in axes.lines]
    return sum(points) + sum(len(each.get_offsets()) for each in axes.collections)


def _chart(axes: Any) -> Chart:
    kind, read = _kind(axes)
    chart: Chart = {"type": kind, "title": axes.get_title() or None, "elements": []}
    return chart if read is None else read(axes, chart)


def _kind(axes: Any) -> tuple[str, Callable[[Any, Chart], Chart] | None]:
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    drawn = [each for each in axes.get_children() if each in axes._children]
    drawn = [each for each in drawn if not isinstance(each, Text)]
    plain = [each for each in drawn if not (isinstance(each, Line2D) and _is_grid_line(each))]
    for kind, read, types, among in (
        ("line", _line_chart, Line2D, drawn),
        ("box_and_whisker", _box_chart, (PathPatch, Line2D), drawn),
        ("scatter", _scatter_chart, PathCollection, plain),
        ("pie", _pie_chart, Wedge, plain),
        ("bar", _bar_chart, Rectangle, plain),
    ):
        if all(isinstance(each, types) for each in among):
            return kind, read
    return "unknown", None


def _is_grid_line(line: Any) -> bool:
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def _rounded(number: Any) -> float:
    """Returns a number without the last digits, which drawing has changed."""
    value = float(number)
    size = floor(log10(abs(value))) if value else 0
    return float(f"{value:.{max(1, _DIGITS - size)}g}")


# -- axes


def _with_labels(axes: Any, chart: Chart, *, swapped: bool = False) -> Chart:
    """Adds the labels of the axes, and the units in them, to a chart."""
    labels = {"x": axes.get_xlabel() or None, "y": axes.get_ylabel() or None}
    if swapped:
        labels = {"x": labels["y"], "y": labels["x"]}
    for name, label in labels.items():
        unit = _UNIT.search(label or "")
        chart[f"{name}_label"] = label
        chart[f"{name}_unit"] = (unit[1] or unit[2]) if unit else None
    return chart


def _with_ticks(axes: Any, chart: Chart) -> Chart:
    from matplotlib.dates import num2date

    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        is_time = _is_time(axis)
        ticks = [num2date(each).isoformat() if is_time else each for each in axis.get_ticklocs()]
        chart[f"{name}_ticks"] = [*_plain(ticks)]
        chart[f"{name}_tick_labels"] = labels
        scale = axis.get_scale()
        if scale == "linear" and _counts(ticks, labels):
            scale = "categorical"
        chart[f"{name}_scale"] = "datetime" if is_time else scale
    return chart


def _is_time(axis: Any) -> bool:
    from matplotlib.dates import _SwitchableDateConverter

    return isinstance(axis.get_converter(), _SwitchableDateConverter)


def _counts(ticks: Sequence[Any], labels: Sequence[str]) -> bool:
    """Returns whether ticks are 0, 1, 2 and so on, with other texts than these numbers."""
    pairs = enumerate(zip(ticks, labels, strict=False))
    return all(tick == at and label != str(at) for at, (tick, label) in pairs)


def _plain(values: Iterable[Any]) -> Iterator[Any]:
    """Yields numbers as floats, times and texts as texts, and None for missing values."""
    numpy = sys.modules["numpy"]
    for value in values:
        if isinstance(value, date):
            yield value.isoformat()
        elif isinstance(value, numpy.datetime64):
            yield str(value.astype("datetime64[s]"))
        elif isinstance(value, str):
            yield value
        else:
            number = float(value)
            yield None if isnan(number) else number


# -- kinds of charts


def _points(label: Any, x: Iterable[Any], y: Iterable[Any]) -> Chart:
    return {"label": label, "points": [*zip(_plain(x), _plain(y), strict=True)]}


def _line_chart(axes: Any, chart: Chart) -> Chart:
    for line in axes.get_lines():
        if not _is_grid_line(line):
            label = line.get_label()
            label = f"Line {label[6:]}" if label.startswith("_child") else label
            chart["elements"].append(_points(label, line.get_xdata(), line.get_ydata()))
    return _with_ticks(axes, _with_labels(axes, chart))


def _scatter_chart(axes: Any, chart: Chart) -> Chart:
    for each in axes.collections:
        offsets = each.get_offsets()
        chart["elements"].append(_points(each.get_label(), offsets[:, 0], offsets[:, 1]))
    return _with_ticks(axes, _with_labels(axes, chart))


def _pie_chart(axes: Any, chart: Chart) -> Chart:
    for wedge in axes.patches:
        angle = _rounded(abs(wedge.theta2 - wedge.theta1))
        chart["elements"].append({"label": wedge.get_label(), "angle": angle, "radius": wedge.r})
    return chart


def _bar_chart(axes: Any, chart: Chart) -> Chart:
    lies = False
    for bars in axes.containers:
        lies = bars.orientation == "horizontal"
        group = bars.get_label()
        group = f"Group {group[10:]}" if group.startswith("_container") else group
        axis = axes.yaxis if lies else axes.xaxis
        labels = [label.get_text() for label in axis.get_ticklabels()]
        values = _plain(bar.get_width() if lies else bar.get_height() for bar in bars)
        chart["elements"] += [
            {"label": label, "group": group, "value": value}
            for label, value in zip(labels, values, strict=False)
        ]
    return _with_labels(axes, chart, swapped=lies)


# -- boxes: `along` is the axis of their values, `across` the one on which they stand side by side


def _box_chart(axes: Any, chart: Chart) -> Chart:
    shapes = [each.get_path().vertices for each in axes.patches]
    boxes = [[_ends(shape[:, 0]), _ends(shape[:, 1])] for shape in shapes]
    lines = [
        [[*map(_rounded, data)] for data in (line.get_xdata(), line.get_ydata())]
        for line in axes.lines
    ]
    # a median crosses its box from side to side
    upright = any(len(x) == 2 and _ends(x) == box[0] for x, _ in lines for box in boxes)
    across, along = (0, 1) if upright else (1, 0)
    labels = [each.get_text() for each in (axes.yaxis, axes.xaxis)[upright].get_ticklabels()]
    for label, box in zip(labels, boxes, strict=False):
        left, right = box[across]
        own = [
            line[along]
            for line in lines
            if line[across] and left <= min(line[across]) <= max(line[across]) <= right
        ]
        chart["elements"].append({"label": label, **_box(*box[along], own)})
    return _with_labels(axes, chart, swapped=not upright)


def _ends(values: Iterable[Any]) -> tuple[float, float]:
    numbers = [*map(_rounded, values)]
    return min(numbers), max(numbers)


def _box(low: float, high: float, lines: list[list[float]]) -> Chart:
    """Returns the numbers of a box from its lower and upper end, and the lines drawn over it."""
    pairs = [(min(line), max(line)) for line in lines if len(line) == 2]
    return {
        "min": next((least for least, most in pairs if most == low), low),
        "first_quartile": low,
        "median": next((most for least, most in pairs if low <= least == most <= high), low),
        "third_quartile": high,
        "max": next((most for least, most in pairs if least == high), high),
        "outliers": [value for line in lines if len(line) != 2 for value in line],
    }
