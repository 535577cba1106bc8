"""Sources: what users have that gives batches, or rows one by one, and is never in memory as a whole."""
