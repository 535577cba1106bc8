"""Tests of the conformance kit and of the backends that core brings, and what they share.

`broken` holds deliberately wrong backends, each of which must fail a test of the kit.
"""
