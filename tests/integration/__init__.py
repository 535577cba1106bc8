"""Tests over every framework that is installed: each against NumPy, and several in one graph."""
