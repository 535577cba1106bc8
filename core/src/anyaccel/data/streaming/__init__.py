"""Sources: data that yields batches, or single rows, and is never in memory as a whole.

`IterableSource` wraps loaders, data sets and generators of any framework, `MapSource` map-style data sets,
`ParquetStream` Parquet files; `as_source` chooses one for the data of a phase. Stands on `anyaccel.data.feature_set`
(for the example of a source), `anyaccel.data.readers` and, to copy tensors to the host, `anyaccel.registry`.
"""
