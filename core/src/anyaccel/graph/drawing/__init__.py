"""Drawings of graphs as Mermaid and notebook HTML, from one description (`diagram`).

SVG is drawn by `anyaccel-devtools`. Stands on the nodes, shapes and plans of `graph`.
"""
