"""Starting, supervising, restarting and stopping the processes and threads of a run."""
