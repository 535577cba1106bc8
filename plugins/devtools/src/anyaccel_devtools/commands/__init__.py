"""What the commands do: `conform`, `doctor`, `env` and `new-plugin`, each in a module of its name."""
