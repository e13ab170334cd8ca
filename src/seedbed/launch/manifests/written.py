"""The engines that manifests are written for, and the writing of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from seedbed import regular_files
from seedbed.errors import ConfigError
from seedbed.launch.manifests import jobgroup, jobset, rayjob, slurm
from seedbed.launch.manifests.plan import Plan

ENGINES: Mapping[str, Callable[[Plan], dict[str, str]]] = {
    "slurm": slurm.files,
    "kubernetes": jobset.files,
    "rayjob": rayjob.files,
    "skypilot": jobgroup.files,
}
"""Functions that return an engine's files, text by name, by its name."""
NEXT: Mapping[str, str] = {
    "slurm": "bash {folder}/submit.sh",
    "kubernetes": "kubectl apply -f {folder}",
    "rayjob": "kubectl apply -f {folder}/rayjob.yaml",
    "skypilot": "sky jobs launch {folder}/jobgroup.yaml",
}
"""The command with which each engine begins."""
_SECRET, _SCRIPT, _PLAIN = 0o600, 0o777, 0o666


def write(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Writes files into a folder; scripts can be executed, and a Secret can be read by its user only.

    Args:
      files: texts by name.
      folder: folder, which is made if it is not there.

    Returns:
      The paths of the files.

    Raises:
      ConfigError: one of them is there already, or cannot be written.
    """
    paths = [folder / name for name in files]
    try:
        if there := [path for path in paths if path.exists()]:
            raise ConfigError(
                f"{there[0]} is there already, and may have been changed by hand: remove it, or give another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            mode = _SECRET if path.name == "secret.yaml" else _SCRIPT if path.suffix == ".sh" else _PLAIN
            regular_files.write_whole(path, text, mode)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return paths
