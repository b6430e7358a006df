"""A picture of attention probabilities: a row per layer, a column per head."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


def draw_attention(path: str | Path, maps: ArrayLike, *, title: str = "") -> Path:
    """Draws what `yamame.trajectory.attention_maps` gives.

    Brightness is the square root of the probability, for a timestep among hundreds takes a small share.

    Args:
        path: The PNG file.
        maps: ``[layers, H, L, L]``.
        title: Stands above.

    Raises:
        ValueError: If ``maps`` has another shape.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    array = np.asarray(maps, dtype=float)
    if array.ndim != 4 or array.shape[2] != array.shape[3] or array.size == 0:
        raise ValueError(f"draw_attention: maps must be [layers, H, L, L], got {list(array.shape)}")
    layers, heads = array.shape[:2]
    figure = Figure(figsize=(1.6 * heads + 0.8, 1.6 * layers + 0.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    figure.supxlabel("timestep looked at")
    figure.supylabel("timestep that looks")
    for index, axes in enumerate(figure.subplots(layers, heads, squeeze=False).flat):
        layer, head = divmod(index, heads)
        axes.imshow(np.sqrt(array[layer, head]), vmin=0.0, vmax=1.0, cmap="magma", interpolation="nearest")
        axes.set_title(f"layer {layer} head {head}", fontsize=6)
        axes.tick_params(labelsize=5)
    path = Path(path)
    figure.savefig(path, format="png")
    return path
