"""Drawings of graphs as Mermaid, SVG and notebook HTML, from one description (`diagram`).

Stands on the nodes, shapes and plans of `graph`.
"""
