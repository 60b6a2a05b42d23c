"""Charts as images inside a page."""

import base64
import io
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, RED, GREY = "#2563a8", "#b8402a", "#8a8f98"

Draw = Callable[[Axes], None]


def chart(draw: Draw) -> str:
    """Return the drawing of ``draw`` as a data URL of an image."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def legend_above(axes: Axes, columns: int) -> None:
    """Place the legend where it covers no line."""
    axes.legend(frameon=False, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, 1.18))
