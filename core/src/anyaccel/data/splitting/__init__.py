"""Which rows go where: at random, by strata, in groups."""
