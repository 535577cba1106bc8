"""Training runs that are killed at random instants, one process after the other, until they come to their end."""
