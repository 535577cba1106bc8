"""Transforms of columns in the scikit-learn style: fitted on some rows, applied to all, and undone again.

Works on Arrow tables and stands on core's readers; `FeatureSet` offers it as
`fit_transform`, `transform_like`, `undo_transform` and `inverse`. scikit-learn itself is never imported.
"""
