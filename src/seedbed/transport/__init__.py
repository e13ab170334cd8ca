"""Arrays between places: one seam, three carriers (``seam`` says what every carrier promises)."""
