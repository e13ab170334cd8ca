"""Shows the modules of Seedbed, and no others, what Python has on Windows: on ``PYTHONPATH`` of a process."""

import builtins
import types

ABSENT = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
LACKS = {
    "os": """
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH PRIO_PROCESS SCHED_IDLE chown fchdir fchown fork geteuid
        getgid getloadavg getpgid getpgrp getpriority getuid killpg memfd_create mkfifo nice pipe2 posix_fallocate
        register_at_fork sched_getaffinity sched_param sched_setaffinity sched_setscheduler setpriority setsid statvfs
        sysconf uname waitid""",
    "select": "POLLERR POLLHUP POLLIN POLLOUT epoll poll",
    "selectors": "EpollSelector PollSelector",
    "signal": """
        SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIG_BLOCK SIG_UNBLOCK alarm pthread_sigmask
        setitimer siginterrupt""",
    "socket": "AF_UNIX CMSG_LEN MSG_DONTWAIT SCM_RIGHTS SO_PEERCRED recv_fds send_fds",
    "sys": "",
}


class Narrowed(types.ModuleType):
    """A module as it is on Windows."""

    def __init__(self, module):
        super().__init__(module.__name__)
        self.__dict__.update(whole=module, lacks=set(LACKS[module.__name__].split()))

    def __getattr__(self, name):
        if name in self.lacks:
            raise AttributeError(f"module {self.__name__!r} has no {name!r} on Windows")
        return "win32" if (self.__name__, name) == ("sys", "platform") else getattr(self.whole, name)

    def __setattr__(self, name, value):
        setattr(self.whole, name, value)


def narrowed(name, importer=None, names=None, fromlist=(), level=0):
    """Imports as ``import`` does."""
    if level or not importer or importer.get("__name__", "").partition(".")[0] != "seedbed":
        return imported(name, importer, names, fromlist, level)
    if name in ABSENT:
        raise ModuleNotFoundError(f"no module {name!r} on Windows, which {importer['__name__']} imports")
    if name == "msvcrt":
        return types.SimpleNamespace()
    module = imported(name, importer, names, fromlist, level)
    return Narrowed(module) if name in LACKS else module


imported, builtins.__import__ = builtins.__import__, narrowed
