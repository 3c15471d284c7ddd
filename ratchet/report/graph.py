"""The lineage as a drawing: stages as boxes, arrows from what was written to who read it.

Knows boxes and arrows; refuses to know DVC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ratchet.report.lineage import Node, layers

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, ARC = 122, 50, 44, 26, 24

Place = tuple[float, float]


def graph(nodes: Sequence[Node], notes: Mapping[str, str]) -> str:
    """One SVG of `nodes`, left to right; `notes` puts a second line into a stage's box."""
    depth = _late(nodes, layers(list(nodes)))
    farthest = max((depth[n.name] - depth[p] for n in nodes for p in n.parents), default=1)
    place = _places(nodes, depth, top=8 + ARC * max(0, farthest - 1))
    width = 8 + max(x for x, _ in place.values()) + BOX_WIDTH
    height = 8 + max(y for _, y in place.values()) + BOX_HEIGHT
    edges = [(p, n.name, depth[n.name] - depth[p]) for n in nodes for p in n.parents]
    near = "".join(_near(place[start], place[end]) for start, end, apart in edges if apart == 1)
    boxes = "".join(_box(place[node.name], node.name, notes.get(node.name, "")) for node in nodes)
    said = "; ".join(f"{n.name} reads from {', '.join(n.parents)}" for n in nodes if n.parents)
    return (
        f'<svg class="graph" viewBox="0 0 {width:g} {height:g}" style="min-width:{width * 0.8:g}px" role="img" '
        f'aria-label="{escape(f"The stages. {said}")}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
        f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{_far([edge for edge in edges if edge[2] > 1], place)}{near}{boxes}</svg>"
    )


def _late(nodes: Sequence[Node], depth: Mapping[str, int]) -> dict[str, int]:
    """`depth`, with a stage that reads from none right before its first reader, not where the others begin."""
    readers = {node.name: [depth[other.name] for other in nodes if node.name in other.parents] for node in nodes}
    return {
        node.name: depth[node.name] if node.parents or not readers[node.name] else min(readers[node.name]) - 1
        for node in nodes
    }


def _places(nodes: Sequence[Node], depth: Mapping[str, int], *, top: float) -> dict[str, Place]:
    """The upper left corner of each box: a column for each layer, stages of one layer below each other."""
    below: dict[int, int] = {}
    place: dict[str, Place] = {}
    for node in nodes:
        layer = depth[node.name]
        row = below.setdefault(layer, 0)
        place[node.name] = (4 + layer * (BOX_WIDTH + GAP_X), top + row * (BOX_HEIGHT + GAP_Y))
        below[layer] += 1
    return place


def _near(start: Place, end: Place) -> str:
    """An arrow to the next layer, from side to side."""
    x1, y1, x2, y2 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2, end[0], end[1] + BOX_HEIGHT / 2
    bend = (x1 + x2) / 2
    return (
        f'<path class="arrow" marker-end="url(#tip)" d="M{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"/>'
    )


def _far(edges: Sequence[tuple[str, str, int]], place: Mapping[str, Place]) -> str:
    """Arrows over the boxes between. Those at one box are spread so that a farther one encloses a nearer one."""
    arrows = ""
    for start, end, apart in edges:
        leaving = sorted(((e[2], e[1]) for e in edges if e[0] == start), reverse=True)
        arriving = sorted((e[2], e[0]) for e in edges if e[1] == end)
        x1 = place[start][0] + BOX_WIDTH * (0.55 + 0.13 * leaving.index((apart, end)))
        x2 = place[end][0] + BOX_WIDTH * (0.12 + 0.13 * arriving.index((apart, start)))
        y1, y2 = place[start][1], place[end][1]
        peak = min(y1, y2) - ARC * (apart - 1) * 1.3
        path = f"M{x1:g} {y1:g}C{x1:g} {peak:g} {x2:g} {peak:g} {x2:g} {y2:g}"
        arrows += f'<path class="arrow far" marker-end="url(#tip)" d="{path}"/>'
    return arrows


def _box(place: Place, name: str, note: str) -> str:
    x, y = place
    middle = x + BOX_WIDTH / 2
    return (
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{middle:g}" y="{y + (21 if note else 30):g}" text-anchor="middle">{escape(name)}</text>'
        f'<text class="note" x="{middle:g}" y="{y + 38:g}" text-anchor="middle">{escape(note)}</text>'
    )
