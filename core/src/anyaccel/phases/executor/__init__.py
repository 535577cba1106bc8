"""Executor: runs the programs of a phase, one per segment, over chunks of rows that are on their devices.

Stands on `loading`. `pipeline` has the programs and one call for several steps, `cross_segment` single steps over
several segments (values and gradients copied between them, clipping over all), `stage` one segment with its program.
"""
