"""Loading: turns the user's data into chunks of rows on devices. Stands on data and graph.

`input_data` (the data as rows or a source, in the units of the graph's data), `host_columns` (columns in host memory,
as the plan loads them), `epoch_plan` (samplers to row orders, and the rows of each step of an epoch), `loader` (the
protocol `BatchLoader`, and rows that stay on their devices), `streaming` and `source_loader` (rows that are sent in
chunks), `residency` (the choice between these, from measured memory).
"""
