"""Exports: a request as other schedulers write it. Stands on the grammar and the products of the package."""

from anyaccel.requests.exports.export import FORMATS, export

__all__ = ["FORMATS", "export"]
