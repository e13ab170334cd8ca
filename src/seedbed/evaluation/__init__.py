"""Playing with a trained agent: returns, videos, data sets."""
