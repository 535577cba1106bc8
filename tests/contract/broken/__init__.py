"""Deliberately wrong backends, by area of the contract. `suite.py` runs the kit over all of them."""
