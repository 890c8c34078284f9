"""Run: one experiment, from its YAML file to its summary."""
