"""Stage 5: from batches to weights."""
