"""Where the files that ship with Prony lie: in goes a folder's name, out comes its path."""

from pathlib import Path

_IN_CHECKOUT = {
    "scenarios": "loadgen/scenarios",
    "objectives": "slo/objectives",
    "boards": "dashboards/grafana",
    "locustfile.py": "loadgen/locustfile.py",
}


def shipped(name: str) -> Path:
    """The path of a shipped folder or file, in an installed wheel and in a checkout alike."""
    in_wheel = Path(__file__).parent / "shipped_files" / name
    if in_wheel.exists():
        return in_wheel
    return Path(__file__).parents[2] / _IN_CHECKOUT[name]


def find(folder: str, name: str) -> Path | None:
    """The YAML file that `name` means: a path as it is, else a shipped file of that name.

    None where there is neither; `names(folder)` lists what could have been meant.
    """
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or _is_file(path):
        return path if _is_file(path) else None
    candidate = shipped(folder) / f"{name}.yaml"
    return candidate if _is_file(candidate) else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long a name, a folder that nobody may enter
        return False


def is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except OSError:
        return False


def names(folder: str) -> list[str]:
    """The names of the shipped YAML files of a folder, sorted."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))
