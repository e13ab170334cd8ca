"""The search for settings: many runs with other values, of which the worse ones are stopped early."""
