"""A page in the browser with the standing of runs: ``seedbed watch``.

::

    browser                                   this process                        disk
    index.html, page.js, page.css  ◄───────── files of the package
    every 2 s: runs.json, curves.json,  ◄──── Watcher ◄────────────────────────── run folders
    run.json of the chosen run
    Prometheus: metrics  ◄───────────────────

Nothing is loaded from elsewhere, and nothing needs to be built. Alternatives weighed: a chart library in the package (a
copy to keep up to date, for lines and bands that take 40 lines of SVG), a framework with a server side for charts
(dozens of packages), the standard library's ``http.server`` (no TLS, routes or ranges of videos without writing them
here).

Off loopback the page needs a token and TLS, as every conversation of the project does. On loopback it answers only to
requests that were made to loopback by name: another site's page must not reach it by a name that leads here.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seedbed import regular_files
from seedbed.errors import ConfigError
from seedbed.installation import extra_line
from seedbed.metrics.console import Budget, entries
from seedbed.metrics.reports import Curve, together
from seedbed.metrics.statistics import bootstrap_interval, interquartile_mean
from seedbed.transport.tls import Identity, is_loopback
from seedbed.watching.prometheus import exposition
from seedbed.watching.run import Standing, budget
from seedbed.watching.watcher import Watcher

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_PAGE = Path(__file__).parent / "page"
_FILES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
_MOST_POINTS = 300
_RESAMPLES = 200
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_AXES: dict[str, Callable[[Curve], Any]] = {
    "frames": lambda curve: curve.frames,
    "seconds": lambda curve: curve.seconds,
}


# -- the answers -------------------------------------------------------------------------------------------


class Answers:
    """The answers to a page's questions, as JSON values; used by one thread.

    Args:
      paths: run folders, or folders of runs.

    Raises:
      ConfigError: there is no run.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._watcher = Watcher(paths, last=None)
        self._standings: dict[str, Standing] = {}
        self._folded: dict[Any, dict[str, Any]] = {}

    def runs(self) -> dict[str, Any]:
        """Returns all runs, a line each, and the settings in which they differ."""
        found = self._watcher.look()
        self._standings = {_id(run): run for run in found}
        names = dict.fromkeys(["agent", "arch", "env", *(name for run in found for name in run.settings)])
        agents = [each for run in found for each in _settings_of_agents(run)]
        names |= dict.fromkeys(name for agent in agents for name in agent)
        differ = [name for name in names if len({_text(agent.get(name)) for agent in agents}) > 1]
        return {
            "runs": [_line(name, run) for name, run in self._standings.items()],
            "settings": list(dict.fromkeys(["agent", "arch", "env", *differ])),
        }

    def metrics(self) -> tuple[bytes, str]:
        """Returns the newest numbers of all runs for Prometheus, and their content type."""
        return exposition(self._watcher.look())

    def run(self, name: str) -> dict[str, Any]:
        """Returns all that is known of one run; raises :class:`KeyError` if there is no such run."""
        run = self._standings[name]
        limits = Budget() if run.is_over else budget(run.settings)
        return {
            **_line(name, run),
            "why": run.why,
            "figures": entries(run.row, limits),
            "shares": dict(run.shares),
            "traffic": [dict(each) for each in run.traffic],
            "program": run.program.to_json() if run.program else None,
            "instances": [] if run.is_over else [dict(each) for each in run.instances],
            "machines": run.machines,
            "faults": [asdict(line) for line in run.faults],
            "video": run.folder.video.is_file(),
        }

    def curves(self, by: str, name: str) -> dict[str, Any]:
        """Returns curves in groups with the same value of a setting, folded over the runs of each.

        Args:
          by: the setting.
          name: run whose environment the runs have; returns of several cannot be folded, but with ``by`` "env" there is
            a group for each.

        Raises:
          KeyError: there is no such run.
        """
        env = None if by == "env" else _env(self._standings[name])
        groups: dict[str, list[Curve]] = {}
        for standing in self._standings.values():
            watched = self._watcher.runs.get(standing.folder.path)
            curves = watched.curves() if watched and env in (None, _env(standing)) else []
            for settings, curve in zip(_settings_of_agents(standing), curves, strict=False):
                if len(curve.frames):
                    value = _env(standing) if by == "env" else _text(settings.get(by))
                    groups.setdefault(value, []).append(curve)
        folded = {}
        for value, curves in groups.items():
            key = (env, by, value, *(len(curve.frames) for curve in curves))
            # Resampling is the slow part: it is done again when there are new points.
            folded[key] = self._folded.get(key) or {
                "name": value,
                **{axis: fold(curves, x_of) for axis, x_of in _AXES.items()},
            }
        self._folded = folded
        return {"env": env, "groups": list(folded.values())}

    def video(self, name: str) -> Path:
        """Returns the video of a run; raises :class:`KeyError` if there is none."""
        path = self._standings[name].folder.video
        try:
            regular_files.require(path)
        except OSError as error:
            raise KeyError(name) from error
        return path


def _settings_of_agents(run: Standing) -> list[Mapping[str, Any]]:
    """The settings of each agent of a run."""
    return [{**run.settings, **own} for own in run.agents or ({},)]


def fold(curves: Sequence[Curve], x_of: Callable[[Curve], Any]) -> dict[str, Any]:
    """Returns the lines of some runs and their middle: ``[x, interquartile mean, low, high]``, empty for one run."""
    lines = [_thinned(np.stack([x_of(curve), curve.mean_return], axis=1)) for curve in curves]
    middle: list[list[float]] = []
    if len(curves) > 1:
        grid, returns = together(list(map(x_of, curves)), [curve.mean_return for curve in curves])
        low, high = bootstrap_interval(returns, resamples=_RESAMPLES)
        middle = np.stack([grid, interquartile_mean(returns), low, high], axis=1).tolist()
    return {"lines": lines, "middle": middle}


def _thinned(points: Any) -> list[list[float]]:
    """At most so many of the points, evenly chosen, with the last one."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).round().astype(int))
    thinned: list[list[float]] = points[chosen].tolist()
    return thinned


def _id(run: Standing) -> str:
    return sha256(str(run.folder.path).encode(errors="surrogateescape")).hexdigest()[:12]


def _line(name: str, run: Standing) -> dict[str, Any]:
    settings, row = run.settings, run.row
    return {
        "id": name,
        "name": run.name,
        **{key: _text(settings.get(key, "")) for key in ("env", "agent", "arch")},
        "state": run.state,
        "steps": row.get("agent_steps"),
        "steps_per_second": row.get("agent_steps_per_second"),
        "mean_return": row.get("mean_return"),
        "bottleneck": None if run.is_over else run.bottleneck,
    }


def _env(run: Standing) -> str:
    """The environment of a run, with its options."""
    options = run.settings.get("env_options")
    return " ".join(map(str, [run.settings.get("env"), *(options if isinstance(options, list) else ())]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _finite(value: Any) -> Any:
    """A value without numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


# -- the server --------------------------------------------------------------------------------------------


def application(answers: Answers, token: str | None) -> Starlette:
    """Returns the page as an ASGI application.

    Args:
      answers: answers to its questions.
      token: token without which nothing is answered; None: only requests to loopback by name are answered.
    """
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse
    from starlette.responses import Response as Plain
    from starlette.routing import Route

    def answer(make: Callable[[Request], Any]) -> Callable[..., Any]:
        # A coroutine that waits for nothing: answers are made one after the other, by one thread.
        async def respond(request: Request) -> Response:
            refused = _refused(request, token)
            if refused is not None:
                return PlainTextResponse(refused, 403, _HEADERS)
            try:
                made = make(request)
            except KeyError:
                return PlainTextResponse("there is no such thing", 404, _HEADERS)
            if isinstance(made, Path):
                return FileResponse(made, headers=_HEADERS, media_type="video/mp4")
            if isinstance(made, tuple):
                return Plain(made[0], 200, _HEADERS, made[1])
            text = json.dumps(_finite(made), allow_nan=False)
            return Plain(text.encode(errors="replace"), 200, _HEADERS, "application/json")

        return respond

    def curves(request: Request) -> dict[str, Any]:
        return answers.curves(request.query_params.get("by", "agent"), request.query_params.get("run", ""))

    def static(name: str) -> Callable[..., Any]:
        async def respond(request: Request) -> Response:
            refused = _refused(request, token)
            if refused is not None:
                return PlainTextResponse(refused, 403, _HEADERS)
            given = request.query_params.get("token")
            if token is not None and given is not None:
                # The token leaves the address line, and with it the history of the browser.
                response: Response = RedirectResponse("./", 303, _HEADERS)
                response.set_cookie(
                    _cookie(request),
                    token,
                    httponly=True,
                    samesite="strict",
                    secure=request.url.scheme == "https",
                )
                return response
            return Plain((_PAGE / name).read_bytes(), 200, _HEADERS, _FILES[name])

        return respond

    return Starlette(
        routes=[
            Route("/", static("index.html")),
            *(Route(f"/{name}", static(name)) for name in _FILES if name != "index.html"),
            Route("/runs.json", answer(lambda request: answers.runs())),
            Route("/curves.json", answer(curves)),
            Route("/run.json", answer(lambda request: answers.run(request.query_params.get("run", "")))),
            Route("/metrics", answer(lambda request: answers.metrics())),
            Route("/video", answer(lambda request: answers.video(request.query_params.get("run", "")))),
        ]
    )


def _cookie(request: Request) -> str:
    """Returns the name of the cookie with the token: browsers show a host's cookies to each of its ports."""
    return f"seedbed_token_{request.url.port or request.url.scheme}"


def _refused(request: Request, token: str | None) -> str | None:
    """The reason why a request is not answered; None if it is."""
    if token is None:
        host = request.url.hostname or ""
        return (
            None if is_loopback(host) else f"this page is for this machine alone, and was asked for as {host}"
        )
    given = request.query_params.get("token") or request.cookies.get(_cookie(request)) or ""
    if hmac.compare_digest(given.encode(), token.encode()):
        return None
    return "give the token that seedbed watch has printed: /?token=…"


@dataclass(frozen=True)
class Place:
    """The place at which a page listens.

    Attributes:
      host: address or name to listen at.
      port: port; 0 for a free one.
      certificate: PEM files of a certificate and its key; empty for one that is made, off loopback.
      insecure: whether to talk in plain text off loopback.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    certificate: tuple[str, ...] = ()
    insecure: bool = False


def serve(paths: Sequence[str | Path], place: Place, say: Callable[[str], object]) -> None:
    """Serves the page until Ctrl-C.

    Args:
      paths: run folders, or folders of runs.
      place: place at which it listens.
      say: callback for each line for the user.

    Raises:
      ConfigError: there is no run, the place is taken, or the extra is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"seedbed watch needs Starlette, uvicorn and prometheus-client ({error}): {extra_line('watch')}"
        ) from error
    answers = Answers(paths)
    off_loopback = not is_loopback(place.host)
    token = secrets.token_hex(16) if off_loopback else None
    secure = bool(place.certificate) or (off_loopback and not place.insecure)
    with _listening(place) as listener, _certificate(place, made=secure) as files:
        shown = f"[{place.host}]" if ":" in place.host else place.host
        name = socket.gethostname() if place.host in ("0.0.0.0", "::") else shown
        query = f"?token={token}" if token else ""
        say(f"watch: {'https' if secure else 'http'}://{name}:{listener.getsockname()[1]}/{query}")
        page = application(answers, token)
        config = uvicorn.Config(page, log_level="warning", access_log=False, lifespan="off")
        config.ssl_certfile, config.ssl_keyfile = files or (None, None)
        uvicorn.Server(config).run(sockets=[listener])


def _listening(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.host, place.port))
        listener.listen()  # so that the page answers as soon as its address is told
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen at {place.host}:{place.port}: {reason}; see --host, and --port (0: a free one)"
        ) from error
    return listener


def _certificate(place: Place, *, made: bool) -> AbstractContextManager[tuple[str, ...]]:
    """Files with a certificate and its key while the block runs; empty for plain text."""
    if place.certificate:
        if len(place.certificate) != 2:
            raise ConfigError("tls_cert takes two files: --tls-cert CERTIFICATE KEY")
        Identity.read(*place.certificate)  # refused here if they are no certificate with its key
        return nullcontext(place.certificate)
    return _MadeCertificate() if made else nullcontext(())


class _MadeCertificate:
    """A certificate of its own, in files that only the owner reads and that are gone afterwards."""

    def __enter__(self) -> tuple[str, ...]:
        identity = Identity.make()
        self._folder = tempfile.TemporaryDirectory(prefix="seedbed-watch-")
        files = tuple(Path(self._folder.name) / name for name in ("certificate.pem", "key.pem"))
        for file, content in zip(files, (identity.certificate, identity.key), strict=True):
            regular_files.write_whole(file, content, 0o600)
        return tuple(map(str, files))

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
