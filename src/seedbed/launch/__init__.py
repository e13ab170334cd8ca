"""Starting, watching, restarting and stopping the parts of a run."""
