"""The order of rows, pairs and triplets in each epoch, and how it is cut into batches."""
