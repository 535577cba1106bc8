"""What users have, as Arrow tables whose columns carry their roles."""
