#!/usr/bin/env python3
"""Draws the dashboards beside this file from the data of a Prometheus, without Grafana: one PNG for each dashboard.

    render.py http://127.0.0.1:9090 --range 30m --out docs/images
    render.py http://127.0.0.1:9090 --only overview

Prometheus must load tollgate.rules.yml too: some panels show recorded metrics. Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, MultipleLocator

HERE = pathlib.Path(__file__).parent
POINTS = 240
LEGEND_ENTRIES = 9

BACKGROUND, CARD, BORDER, TEXT, FAINT, GRID = "#f4f5f5", "#ffffff", "#dfe1e4", "#24292e", "#6e7277", "#ebedef"
PALETTE = ["#3274d9", "#56a64b", "#e0a800", "#e02f44", "#8f3bb8", "#fa6400", "#1f9e9e", "#a16a3f", "#c15c9a", "#5c6b7a"]
COLORS = {
    "green": "#56a64b", "red": "#e02f44", "dark-red": "#8e1528", "semi-dark-red": "#b83246", "orange": "#fa8c16",
    "yellow": "#e0b400", "blue": "#3274d9", "light-blue": "#73a7f0", "purple": "#8f3bb8",
}
BLUES = LinearSegmentedColormap.from_list("blues", ["#ffffff", "#b9d3f7", "#3274d9", "#123a7a"])

# Of one panel, in inches: a row of the grid, and the space inside the card.
ROW_HEIGHT, GAP, HEAD = 0.36, 0.06, 0.75
FIGURE_WIDTH = 17.0


# Distances of ticks on axes of time.
TIME_STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800]


def step_of(length, most):
    """The distance of ticks at which `length` seconds have at most `most` of them."""
    return next((step for step in TIME_STEPS if length / step <= most), length / most)


class Prometheus:
    def __init__(self, url, start, end, rate_interval):
        self.url, self.start, self.end = url.rstrip("/"), start, end
        self.step = max(1.0, (end - start) / POINTS)
        self.rate_interval = rate_interval

    def series(self, target):
        """The result of a query: (labels, [(time, value)]) of each series."""
        expression = target["expr"].replace("$__rate_interval", self.rate_interval)
        expression = re.sub(r"\$\{?[a-z]+\}?", ".*", expression)
        query = {"query": expression, "start": self.start, "end": self.end, "step": self.step}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            result = json.load(response)["data"]["result"]
        found = []
        for each in result:
            points = [(float(at), float(value)) for at, value in each["values"]]
            found.append((each["metric"], [(at, value) for at, value in points if not math.isnan(value)]))
        return [each for each in found if each[1]]


def legend_of(labels, target):
    if not target["legendFormat"]:
        return ""
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"])
    return text.strip() or "(none)"


def scaled(value, base, units):
    for factor, unit in units:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{base}{unit}"
    return f"{value:.3g}{base}"


def text_of(value, unit):
    """A value as Grafana writes it."""
    thousands = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
    if value == 0:
        return "0" + {"percentunit": " %", "s": " s"}.get(unit, "")
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        if abs(value) >= 60:
            return scaled(value, " ", [(86400, "d"), (3600, "h"), (60, "min")])
        return scaled(value, " ", [(1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])
    if unit in ("bytes", "Bps"):
        sizes = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1e-9, "B")]
        return scaled(value, " ", sizes) + ("/s" if unit == "Bps" else "")
    text = scaled(value, "", thousands)
    return text + {"reqps": " /s", "ops": " /s"}.get(unit, "")


def moment(at):
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc)


def color_at(value, thresholds):
    color = "green"
    for step in thresholds["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS.get(color, color)


class Card:
    """One panel on the figure."""

    def __init__(self, figure, panel, prometheus, height):
        self.figure, self.panel, self.prometheus, self.height = figure, panel, prometheus, height
        place = panel["gridPos"]
        unit = FIGURE_WIDTH / 24
        self.left, self.width = place["x"] * unit + GAP, place["w"] * unit - 2 * GAP
        self.bottom = height - HEAD - (place["y"] + place["h"]) * ROW_HEIGHT + GAP
        self.tall = place["h"] * ROW_HEIGHT - 2 * GAP
        self.defaults = panel.get("fieldConfig", {}).get("defaults", {})
        self.unit = self.defaults.get("unit", "short")

    def axes(self, left, bottom, right, top):
        """Axes with these margins, in inches."""
        box = [self.left + left, self.bottom + bottom, self.width - left - right, self.tall - bottom - top]
        axes = self.figure.add_axes([
            box[0] / FIGURE_WIDTH, box[1] / self.height, box[2] / FIGURE_WIDTH, box[3] / self.height])
        axes.set_facecolor("none")
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(colors=FAINT, labelsize=8, length=0)
        return axes

    def frame(self):
        box = FancyBboxPatch((self.left, self.bottom), self.width, self.tall, boxstyle="round,pad=0,rounding_size=0.05",
                             facecolor=CARD, edgecolor=BORDER, linewidth=0.8)
        self.figure.canvas_axes.add_patch(box)
        self.write(0.12, self.tall - 0.21, self.panel["title"], size=9.5, weight="semibold")

    def write(self, x, y, text, **style):
        style = {"color": TEXT, "va": "center", **style}
        size = style.pop("size")
        self.figure.canvas_axes.text(self.left + x, self.bottom + y, text, fontsize=size, **style)

    def draw(self):
        kind = self.panel["type"]
        if kind == "row":
            self.write(0.05, self.tall / 2 - 0.03, self.panel["title"], size=11, weight="bold")
            return
        self.frame()
        found = []
        for target in self.panel["targets"]:
            found += [(legend_of(labels, target), labels, points) for labels, points in self.prometheus.series(target)]
        if not found:
            self.write(self.width / 2, self.tall / 2, "no data", size=9, ha="center", color=FAINT)
            return
        draw = {"stat": self.stat, "timeseries": self.graph, "heatmap": self.heatmap,
                "state-timeline": self.timeline, "bargauge": self.bars}[kind]
        draw(found)

    def color(self, name, index):
        for override in self.defaults_overrides():
            if override["matcher"]["options"] == name:
                fixed = override["properties"][0]["value"]["fixedColor"]
                return COLORS.get(fixed, fixed)
        return PALETTE[index % len(PALETTE)]

    def defaults_overrides(self):
        return self.panel["fieldConfig"]["overrides"]

    def time_axis(self, axes):
        axes.set_xlim(moment(self.prometheus.start), moment(self.prometheus.end))
        length = self.prometheus.end - self.prometheus.start
        step = step_of(length, max(3, int(self.width * 1.1)))
        first = math.ceil(self.prometheus.start / step) * step
        ticks = [first + step * index for index in range(int((self.prometheus.end - first) // step) + 1)]
        axes.xaxis.set_major_locator(FixedLocator([dates.date2num(moment(at)) for at in ticks]))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S" if step < 60 else "%H:%M" if length <= 86400 else "%d %b %H:%M"))

    def legend(self, axes, handles, names):
        if not any(names):
            return
        rest = len(names) - LEGEND_ENTRIES
        handles, names = list(handles[:LEGEND_ENTRIES]), list(names[:LEGEND_ENTRIES])
        if rest > 0:
            handles.append(Patch(color="none"))
            names.append(f"and {rest} more")
        # As many columns as fit, at about 0.068 inches a letter.
        longest = max(len(name) for name in names)
        columns = max(1, min(len(names), int((self.width - 0.3) / (0.42 + 0.068 * longest))))
        at = ((self.left + 0.08) / FIGURE_WIDTH, (self.bottom + 0.03) / self.height)
        axes.legend(handles, names, loc="lower left", bbox_to_anchor=at, bbox_transform=self.figure.transFigure,
                    ncol=columns, frameon=False, fontsize=7.5, labelcolor=TEXT, handlelength=1.0, handleheight=0.7,
                    columnspacing=1.2, handletextpad=0.5, borderaxespad=0, labelspacing=0.3)

    def legend_height(self, names):
        names = [name for name in names[:LEGEND_ENTRIES] if name]
        if not names:
            return 0.0
        longest = max(len(name) for name in names)
        columns = max(1, min(len(names), int((self.width - 0.3) / (0.42 + 0.068 * longest))))
        return 0.17 * math.ceil((len(names)) / columns) + 0.05

    def stat(self, found):
        points = found[0][2]
        value = points[-1][1]
        color = color_at(value, self.defaults["thresholds"])
        axes = self.axes(0, 0.02, 0, self.tall * 0.55)
        times, values = [moment(at) for at, _ in points], [value for _, value in points]
        axes.fill_between(times, values, min(0, min(values)), color=color, alpha=0.18, linewidth=0)
        axes.plot(times, values, color=color, linewidth=1.1)
        axes.set_xlim(moment(self.prometheus.start), moment(self.prometheus.end))
        axes.set_ylim(min(0, min(values)), max(max(values), 1e-12) * 1.15)
        axes.axis("off")
        self.write(self.width / 2, self.tall * 0.55, text_of(value, self.unit), size=23, weight="bold", color=color, ha="center")

    def graph(self, found):
        custom = self.defaults["custom"]
        names = [name for name, _, _ in found]
        axes = self.axes(0.72, 0.30 + self.legend_height(names), 0.15, 0.42)
        handles = []
        if custom["stacking"]["mode"] == "normal":
            grid = sorted({at for _, _, points in found for at, _ in points})
            layers = [[dict(points).get(at, 0.0) for at in grid] for _, _, points in found]
            colors = [self.color(name, index) for index, name in enumerate(names)]
            times = [moment(at) for at in grid]
            axes.stackplot(times, layers, colors=colors, alpha=0.55, linewidth=0)
            below = [0.0] * len(grid)
            for layer, color in zip(layers, colors):
                below = [a + b for a, b in zip(below, layer)]
                axes.plot(times, below, color=color, linewidth=0.9)
            handles = [Patch(color=color, alpha=0.8) for color in colors]
            highest = max(below)
        else:
            for index, (name, _, points) in enumerate(found):
                color = self.color(name, index)
                times, values = gaps_marked(points, self.prometheus.step)
                if custom["drawStyle"] == "bars":
                    width = self.prometheus.step / 86400
                    handles.append(axes.bar(times, values, width=width, color=color, alpha=0.7))
                else:
                    handles += axes.plot(times, values, color=color, linewidth=1.25, solid_joinstyle="round")
                    if len(found) == 1 and "scaleDistribution" not in custom:
                        axes.fill_between(times, values, 0, color=color, alpha=0.06, linewidth=0)
            highest = max(value for _, _, points in found for _, value in points)
        lowest = min(value for _, _, points in found for _, value in points)
        self.value_axis(axes, lowest, highest)
        self.time_axis(axes)
        self.legend(axes, handles, names)

    def value_axis(self, axes, lowest, highest):
        custom = self.defaults["custom"]
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, self.unit)))
        if "scaleDistribution" in custom:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(numticks=7))
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, self.unit)))
            axes.tick_params(which="both", length=0)
            return
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=self.defaults.get("decimals") == 0))
        if self.unit == "s" and highest >= 120:
            axes.yaxis.set_major_locator(MultipleLocator(step_of(highest, 5)))
        elif self.unit in ("bytes", "Bps") and highest > 0:
            axes.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(highest / 5))))
        bars = [step["value"] for step in self.defaults["thresholds"]["steps"] if step["value"] is not None]
        if custom.get("thresholdsStyle") and bars:
            for bar in bars:
                axes.axhline(bar, color=COLORS["red"], linewidth=1, linestyle=(0, (5, 4)), alpha=0.7)
            highest, lowest = max(highest, max(bars)), min(lowest, min(bars))
        least = self.defaults.get("min")
        axes.set_ylim(least if least is not None else lowest * 1.15 if lowest < 0 else 0,
                      highest * 1.12 if highest > 0 else 1)

    def heatmap(self, found):
        bounds = sorted(((float(labels["le"]), points) for _, labels, points in found), key=lambda each: each[0])
        grid = sorted({at for _, points in bounds for at, _ in points})
        totals = [[dict(points).get(at, 0.0) for at in grid] for _, points in bounds]
        below = [0.0] * len(grid)
        cells = []
        for total in totals:
            cells.append([max(0.0, here - under) for here, under in zip(total, below)])
            below = total
        names = [text_of(bound, self.unit) if math.isfinite(bound) else "more" for bound, _ in bounds]
        used = [index for index, line in enumerate(cells) if any(line)]
        first, last = min(used, default=0), max(used, default=0)
        cells, names = cells[first:last + 1], names[first:last + 1]
        highest = max((value for line in cells for value in line), default=0) or 1
        axes = self.axes(0.72, 0.30, 0.15, 0.42)
        axes.pcolormesh([moment(at) for at in grid], range(len(cells)), [[math.sqrt(value / highest) for value in line] for line in cells],
                        cmap=BLUES, vmin=0, vmax=1, shading="nearest")
        axes.set_yticks(range(len(names)), [f"≤ {name}" if name != "more" else "more" for name in names])
        self.time_axis(axes)

    def timeline(self, found):
        states = self.defaults["mappings"][0]["options"]
        names = [name for name, _, _ in found]
        longest = max(len(name) for name in names)
        axes = self.axes(min(self.width * 0.4, 0.25 + 0.068 * longest), 0.52, 0.15, 0.42)
        found = sorted(found, key=lambda each: each[0], reverse=True)
        for index, (_, _, points) in enumerate(found):
            for start, end, value in periods(points, self.prometheus.step):
                color = COLORS.get(states.get(str(int(value)), {}).get("color"), FAINT)
                axes.barh(index, (end - start) / 86400, left=dates.date2num(moment(start)), height=0.72, color=color,
                          linewidth=0, alpha=0.8)
        axes.set_yticks(range(len(found)), [name for name, _, _ in found])
        axes.set_ylim(-0.6, len(found) - 0.4)
        axes.xaxis_date()
        self.time_axis(axes)
        ordered = sorted(states.values(), key=lambda state: state["index"])
        self.legend(axes, [Patch(color=COLORS[state["color"]], alpha=0.8) for state in ordered], [state["text"] for state in ordered])

    def bars(self, found):
        latest = sorted(((points[-1][1], name) for name, _, points in found if points[-1][0] >= self.prometheus.end - 300),
                        reverse=True)[:10]
        longest = max((len(name) for _, name in latest), default=1)
        axes = self.axes(min(self.width * 0.45, 0.25 + 0.072 * longest), 0.15, 0.75, 0.45)
        values = [value for value, _ in latest]
        axes.barh(range(len(latest)), values, height=0.62, color=PALETTE[0], alpha=0.75)
        for index, value in enumerate(values):
            axes.text(value, index, " " + text_of(value, self.unit), va="center", fontsize=8, color=TEXT)
        axes.set_yticks(range(len(latest)), [name for _, name in latest])
        axes.set_ylim(max(len(latest), 5) - 0.4, -0.6)
        axes.set_xticks([])


def gaps_marked(points, step):
    """The points for a line that is interrupted where values are missing."""
    times, values, last = [], [], None
    for at, value in points:
        if last is not None and at - last > 2.5 * step:
            times.append(moment(last + step))
            values.append(math.nan)
        times.append(moment(at))
        values.append(value)
        last = at
    return times, values


def periods(points, step):
    """The periods of equal values: (start, end, value)."""
    found = []
    for at, value in points:
        if found and found[-1][2] == value and at - found[-1][1] < 1.5 * step:
            found[-1][1] = at + step
        else:
            found.append([at, at + step, value])
    return found


def render(board, prometheus, path):
    panels = board["panels"]
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    height = HEAD + lines * ROW_HEIGHT + 0.1
    figure = plt.figure(figsize=(FIGURE_WIDTH, height), facecolor=BACKGROUND)
    canvas = figure.add_axes([0, 0, 1, 1])
    canvas.set_xlim(0, FIGURE_WIDTH)
    canvas.set_ylim(0, height)
    canvas.axis("off")
    figure.canvas_axes = canvas
    canvas.text(0.12, height - 0.28, board["title"], fontsize=16, weight="bold", color=TEXT, va="center")
    canvas.text(0.12, height - 0.56, board["description"], fontsize=10, color=FAINT, va="center")
    period = f"{moment(prometheus.start):%Y-%m-%d %H:%M} to {moment(prometheus.end):%H:%M} UTC"
    canvas.text(FIGURE_WIDTH - 0.12, height - 0.28, period, fontsize=10, color=FAINT, va="center", ha="right")
    for panel in panels:
        Card(figure, panel, prometheus, height).draw()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, facecolor=BACKGROUND)
    plt.close(figure)


def seconds_of(text):
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 6h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def main():
    parser = argparse.ArgumentParser(description="Draws the dashboards from the data of a Prometheus.")
    parser.add_argument("prometheus", help="address of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("--range", type=seconds_of, default=1800, metavar="TIME", help="how far back (30m)")
    parser.add_argument("--end", type=float, metavar="UNIX", help="end of the range, as Unix time (now)")
    parser.add_argument("--rate-interval", default="1m", metavar="TIME", help="what $__rate_interval stands for (1m)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/images"), metavar="DIR", help="folder of the pictures")
    parser.add_argument("--only", metavar="NAME", help="one dashboard, such as overview")
    arguments = parser.parse_args()
    end = arguments.end or time.time()
    prometheus = Prometheus(arguments.prometheus, end - arguments.range, end, arguments.rate_interval)
    names = sorted(path.stem for path in HERE.glob("*.json"))
    if arguments.only and arguments.only not in names:
        sys.exit(f"no dashboard {arguments.only!r}; there are {', '.join(names)}")
    plt.rcParams["font.family"] = "DejaVu Sans"
    plt.rcParams["timezone"] = "UTC"
    for name in [arguments.only] if arguments.only else names:
        path = arguments.out / f"dashboard-{name}.png"
        render(json.loads((HERE / f"{name}.json").read_text()), prometheus, path)
        print(path)


if __name__ == "__main__":
    main()
