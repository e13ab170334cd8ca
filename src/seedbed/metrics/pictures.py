"""Pictures that a user asks for by the name of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seedbed import regular_files
from seedbed.errors import ConfigError


def require_picture(picture: str | Path) -> None:
    """Refuses a file that no picture can be drawn to; asked before the work whose result it shows.

    Raises:
      ConfigError: its name ends otherwise than a picture's, or it cannot be written.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    if Path(picture).suffix.lower().removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise ConfigError(f"cannot draw {picture}: give a name that ends in .png, .svg, .pdf or .jpg")
    try:
        regular_files.require_room(picture, links=True)
    except OSError as error:
        raise ConfigError(f"cannot draw {picture}: {error.strerror or error}") from error


def drawn(draw: Callable[[Path], None], picture: str | Path) -> None:
    """Calls ``draw`` with the file; raises :class:`ConfigError` if the picture cannot be written."""
    require_picture(picture)
    try:
        draw(Path(picture))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw {picture}: {getattr(error, 'strerror', None) or error}") from error
