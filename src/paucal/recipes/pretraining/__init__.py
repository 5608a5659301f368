"""Pre-training without labels: settings, recipes, and a run from beginning to end."""
