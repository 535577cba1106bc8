"""Planning: a phase planned for this machine or another one, with figures of memory. Stands on the package's others."""
