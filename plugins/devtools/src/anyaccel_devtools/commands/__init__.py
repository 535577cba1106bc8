"""The implementations of the commands `conform`, `doctor`, `env` and `new-plugin`, each in a module with its name."""
