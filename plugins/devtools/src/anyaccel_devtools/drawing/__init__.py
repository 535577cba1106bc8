"""Drawings of graphs as SVG and Mermaid text, pages of graphs and plans in notebooks, and plans as HTML files."""

from anyaccel_devtools.drawing.mermaid import draw
from anyaccel_devtools.drawing.notebook import graph_page
from anyaccel_devtools.drawing.plan_pages import plan_page, plan_report
from anyaccel_devtools.drawing.svg import svg

__all__ = ["draw", "graph_page", "plan_page", "plan_report", "svg"]
