"""Readers: what users have (arrays, data frames, Arrow, Parquet files) as Arrow tables whose columns carry their roles.

Each `table_from_*` function gives the table that a constructor of `FeatureSet` holds. Stands on `anyaccel.data.roles`
and `anyaccel.data.arrow_columns`; pandas, Polars and others are used through what the given objects offer, never
imported.
"""
