"""One frozen, typed configuration: it is the flags, the help and the record in the run folder."""
