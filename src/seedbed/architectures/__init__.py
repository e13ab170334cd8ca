"""Where the stages stand: one diagram and one class a file."""
