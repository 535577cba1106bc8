"""Graphs for people: tables, Mermaid, and SVG coloured by device."""
