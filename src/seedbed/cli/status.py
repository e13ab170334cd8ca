"""The exit statuses of ``seedbed``, by which engines decide whether to execute a command again."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """An exit status."""

    OVER = 0
    """The run is over, or the command has done its work."""
    FAILED = 1
    """The run failed; the last line names component, cause and log."""
    WRONG_USAGE = 2
    """A setting, a name or a file that was given is wrong: the same command fails again."""
    FAULT = 3
    """An actor's environment failed or hung: the same command may work, within bounds."""
    OVERTAKEN = 4
    """Another session goes on with the run: the same command would take it away from that one."""
    EXECUTE_AGAIN = 75
    """The same command goes on (EX_TEMPFAIL of sysexits.h).

    The run was interrupted and has saved its state, or before it trained; or its store could not be reached, or another
    process was in its folder, before it began.
    """
    INTERRUPTED = 130
    """Ctrl-C twice, or while nothing trains."""
