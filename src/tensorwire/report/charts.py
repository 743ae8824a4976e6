"""Charts as SVG. Vega-Lite draws them when the page is made, so the page needs no script.

Text stays text, and each mark has a description for screen readers. Colours are the page's CSS
variables, so one drawing works in light and in dark mode.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tensorwire.errors import TensorwireError
from tensorwire.report.section import Bars, Chart, Lines, Waterfall, WaterfallStage
from tensorwire.units import data_size, number

Spec = dict[str, Any]

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "grpc": "var(--grpc)",
        "grpc++": "var(--wire)",
        "grpc++ fused": "var(--fused)",
        "grpc fused": "var(--grpc-fused)",
        "colocated": "var(--wire)",
        "isolated": "var(--fused)",
    }
)
"""Colours of the sides of a comparison; upper limits and other libraries are grey."""
_OTHER = "var(--other)"
_ROW_PX = 30
_TALL_ROW_PX = 46
_CHARACTER_PX = 7.5
_MOST_FOR_LABELS = 0.3
"""Labels that need a larger share of the width than this are placed above their bars."""
_BAR_PX = 18
_NARROW_PX = 500
_DASHES = ([5, 4], [1, 2], [9, 3], [9, 3, 2, 3])
"""Dash patterns of lines whose series is not a side."""
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def check_installed() -> None:
    """Raises TensorwireError if a package that draws pages is not installed."""
    if missing := [name for name in ("jinja2", "vl_convert") if not importlib.util.find_spec(name)]:
        raise TensorwireError(
            f"a page needs {' and '.join(missing)}: pip install 'tensorwire[report]'"
        )


def svg(chart: Chart, width_px: int) -> str:
    """The chart as an SVG element of about `width_px`."""
    import vl_convert

    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 0, "right": 0, "top": 2, "bottom": 2},
        "width": width_px,
        "description": f"{chart.title}, {chart.unit}",
        "config": _CONFIG,
        **_spec(chart, width_px),
    }
    drawn: str = vl_convert.vegalite_to_svg(spec)
    return drawn


def colour(series: str) -> str:
    """The CSS colour of a side; a series such as "balanced, grpc" has the colour of "grpc"."""
    return COLOURS.get(series.rpartition(", ")[2], _OTHER)


def _spec(chart: Chart, width_px: int) -> Spec:
    if isinstance(chart, Bars):
        return _bars(chart, width_px)
    if isinstance(chart, Waterfall):
        return _waterfall(chart, width_px)
    return _lines(chart, width_px)


_CONFIG: Spec = {
    "font": _FONT,
    "text": {"color": "var(--ink)", "fontSize": 13},
    "axis": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 13,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "labelLimit": 220,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 13,
        "title": None,
        "orient": "top",
        "symbolStrokeWidth": 3,
    },
    "view": {"stroke": None},
}


def _rows(labels: Sequence[str], *, drawn: bool = True) -> Spec:
    return {
        "field": "label",
        "type": "nominal",
        "sort": list(labels),
        "axis": {"title": None, "ticks": False, "domain": False, "labelPadding": 8}
        if drawn
        else None,
    }


def _text_px(texts: Iterable[str]) -> float:
    """The width of the longest text, in the widest of the page's fonts."""
    return _CHARACTER_PX * max(map(len, texts), default=0)


def _length(top: float, room_px: float, plot_px: float) -> Spec:
    """An invisible axis from zero. `room_px` is reserved for the figure beside each bar."""
    share = max(plot_px - room_px, 0.2 * plot_px) / plot_px
    return {"type": "quantitative", "axis": None, "scale": {"domain": [0, (top or 1.0) / share]}}


def _bar(x: Spec, *, rounded_px: int = 0, **more: Any) -> Spec:
    """A layer of bars from zero, in the colour of each row."""
    return {
        "mark": {"type": "bar", "height": _BAR_PX, "cornerRadiusEnd": rounded_px, **more},
        "encoding": {"x": x, "color": {"field": "colour", "type": "nominal", "scale": None}},
    }


def _text(x: Spec, field: str, **place: int) -> Spec:
    """A layer of text that begins at `x`."""
    return {
        "mark": {"type": "text", "align": "left", "aria": False, **place},
        "encoding": {"x": x, "text": {"field": field}},
    }


def _bars(chart: Bars, width_px: int) -> Spec:
    values = [
        {
            "label": bar.label,
            "value": bar.value,
            "text": f"{number(bar.value)} {chart.unit}{bar.more}",
            "said": f"{bar.label}: {number(bar.value)} {chart.unit}{bar.more}",
            "colour": colour(bar.series),
            "low": bar.low,
            "high": bar.high,
            "end": max(bar.value, bar.high or 0.0),
        }
        for bar in chart.bars
    ]
    labels = [bar.label for bar in chart.bars]
    labels_px = _text_px(labels) + 8
    are_above = labels_px > _MOST_FOR_LABELS * width_px
    top = max((max(bar.value, bar.high or 0.0) for bar in chart.bars), default=0.0)
    room_px = 16 + _text_px(str(row["text"]) for row in values)
    length = _length(top, room_px, width_px if are_above else width_px - labels_px)
    bars = _bar({"field": "value", **length}, rounded_px=3)
    bars["encoding"]["description"] = {"field": "said"}
    layers = [bars, _text({"field": "end", **length}, "text", dx=7)]
    if any(bar.high is not None for bar in chart.bars):
        layers.insert(
            1,
            {
                "transform": [{"filter": "datum.high !== null"}],
                "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--ink)", "aria": False},
                "encoding": {"x": {"field": "low", **length}, "x2": {"field": "high"}},
            },
        )
    if are_above:
        layers.append(_text({"datum": 0, **length}, "label", dy=-18))
    return {
        "data": {"values": values},
        "height": {"step": _TALL_ROW_PX if are_above else _ROW_PX},
        "encoding": {"y": _rows(labels, drawn=not are_above)},
        "layer": layers,
    }


def _waterfall(chart: Waterfall, width_px: int) -> Spec:
    values = [
        {
            "label": stage.label,
            "value": stage.value,
            "before": stage.before or stage.value,
            "text": _left(stage, chart.unit),
            "said": f"{stage.label}: {_left(stage, chart.unit)}",
            "colour": colour(stage.series),
        }
        for stage in chart.stages
    ]
    top = max((max(stage.value, stage.before or 0.0) for stage in chart.stages), default=0.0)
    labels = [stage.label for stage in chart.stages]
    length = _length(top, 10, width_px - _text_px(labels) - 8)
    lost = _bar({"field": "value", **length}, opacity=0.22, aria=False)
    lost["encoding"]["x2"] = {"field": "before"}
    left = _bar({"field": "value", **length}, rounded_px=2)
    left["encoding"]["description"] = {"field": "said"}
    return {
        "data": {"values": values},
        "height": {"step": _TALL_ROW_PX},
        "encoding": {"y": _rows(labels)},
        "layer": [lost, left, _text({"datum": 0, **length}, "text", dy=18)],
    }


def _left(stage: WaterfallStage, unit: str) -> str:
    """ "500 MB/s (-60%)"."""
    text = f"{number(stage.value)} {unit}"
    if not stage.before:
        return text
    change = f"{stage.value / stage.before - 1.0:+.0%}".replace("-", "\N{MINUS SIGN}")
    return f"{text} ({change})"


def _lines(chart: Lines, width_px: int) -> Spec:
    series = [line.series for line in chart.lines]
    values = [
        {
            "series": line.series,
            "bytes": size,
            "value": value,
            "text": f"{line.series}, {_amount(size, chart)}: {number(value)} {chart.unit}",
        }
        for line in chart.lines
        for size, value in line.points
    ]
    others = [name for name in series if name not in COLOURS]
    dashes = [
        [1, 0] if name in COLOURS else _DASHES[others.index(name) % len(_DASHES)] for name in series
    ]
    scale = {"domain": series, "range": [colour(name) for name in series]}
    powers = range(3, 10) if width_px >= _NARROW_PX else range(3, 10, 3)
    return {
        "data": {"values": values},
        "height": 300 if width_px >= _NARROW_PX else 260,
        "encoding": {
            "x": {
                "field": "bytes",
                "type": "quantitative",
                "scale": {"type": "log"},
                "axis": {
                    "title": None,
                    "grid": False,
                    "values": [64, *(10**power for power in powers)],
                    "labelExpr": _BYTES_EXPRESSION,
                    "labelOverlap": True,
                }
                if chart.over == "bytes"
                else {"title": chart.over, "grid": False, "labelOverlap": True},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "scale": {"type": "log"},
                "axis": {
                    "title": None,
                    "values": [10.0**i for i in range(-4, 7)],
                    "labelExpr": "datum.value < 1 ? '' + datum.value : format(datum.value, ',')",
                },
            },
            "color": {"field": "series", "type": "nominal", "scale": scale},
            "strokeDash": {
                "field": "series",
                "type": "nominal",
                "scale": {"domain": series, "range": dashes},
            },
            "description": {"field": "text"},
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2.5, "aria": False}},
            {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1}},
        ],
    }


def _amount(x: float, chart: Lines) -> str:
    return data_size(x) if chart.over == "bytes" else f"{x:g} {chart.over}"


_BYTES_EXPRESSION = (
    "datum.value >= 1e9 ? datum.value / 1e9 + ' GB'"
    " : datum.value >= 1e6 ? datum.value / 1e6 + ' MB'"
    " : datum.value >= 1e3 ? datum.value / 1e3 + ' kB' : datum.value + ' B'"
)
