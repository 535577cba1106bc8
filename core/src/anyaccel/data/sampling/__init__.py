"""Samplers: the order of rows, pairs and triplets in each epoch, and how it is cut into batches.

`SimpleSampler` takes every row once; `PairSampler` and `TripletSampler` draw rows together by conditions between them
(`Same`, `Different`, `Within`, `Beyond`, `Where`). Stands on `anyaccel.data.rows` and `anyaccel.rng`.
"""
