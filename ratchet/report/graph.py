"""The lineage as a drawing: stages as boxes, arrows from what was written to who read it.

Knows boxes and arrows; refuses to know DVC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ratchet.report.lineage import Node, layers

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, ARC = 122, 50, 44, 26, 24


def graph(nodes: Sequence[Node], notes: Mapping[str, str]) -> str:
    """One SVG of `nodes`, left to right; `notes` puts a second line into a stage's box."""
    depth = layers(list(nodes))
    rows: dict[int, int] = {}
    longest = max((depth[n.name] - depth[p] for n in nodes for p in n.parents), default=1)
    top = 8 + ARC * max(0, longest - 1)
    place: dict[str, tuple[float, float]] = {}
    for node in nodes:
        layer = depth[node.name]
        place[node.name] = (4 + layer * (BOX_WIDTH + GAP_X), top + rows.get(layer, 0) * (BOX_HEIGHT + GAP_Y))
        rows[layer] = rows.get(layer, 0) + 1
    width = 8 + max(x for x, _ in place.values()) + BOX_WIDTH
    height = 8 + max(y for _, y in place.values()) + BOX_HEIGHT
    arrows = "".join(_arrow(place[p], place[n.name], depth[n.name] - depth[p]) for n in nodes for p in n.parents)
    boxes = "".join(_box(place[node.name], node.name, notes.get(node.name, "")) for node in nodes)
    said = escape("; ".join(f"{n.name} reads from {', '.join(n.parents)}" for n in nodes if n.parents))
    return (
        f'<svg class="graph" viewBox="0 0 {width:g} {height:g}" style="min-width:{width * 0.8:g}px" role="img" '
        f'aria-label="The stages. {said}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>{arrows}{boxes}</svg>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], layers_apart: int) -> str:
    """Straight to the next layer; farther ones leave and arrive at the top, the higher the farther."""
    if layers_apart == 1:
        x1, y1, x2, y2 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2, end[0], end[1] + BOX_HEIGHT / 2
        bend = (x1 + x2) / 2
        return f'<path class="arrow" marker-end="url(#tip)" d="M{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"/>'
    x1, x2 = start[0] + BOX_WIDTH * 0.72, end[0] + BOX_WIDTH * (0.42 - 0.08 * layers_apart)
    peak = min(start[1], end[1]) - ARC * (layers_apart - 1) * 1.3
    return f'<path class="arrow far" marker-end="url(#tip)" d="M{x1:g} {start[1]:g}C{x1:g} {peak:g} {x2:g} {peak:g} {x2:g} {end[1]:g}"/>'


def _box(place: tuple[float, float], name: str, note: str) -> str:
    x, y = place
    middle = x + BOX_WIDTH / 2
    return (
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{middle:g}" y="{y + (21 if note else 30):g}" text-anchor="middle">{escape(name)}</text>'
        f'<text class="note" x="{middle:g}" y="{y + 38:g}" text-anchor="middle">{escape(note)}</text>'
    )
