"""Drawings of graphs as SVG, from the description (`Diagram`) that `anyaccel.graph.drawing` makes."""

from anyaccel_devtools.drawing.svg import svg

__all__ = ["svg"]
