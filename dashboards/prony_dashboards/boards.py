"""All boards: the map of engines in, Grafana's JSON files out.

    python -m prony_dashboards.boards --write | --check [FOLDER]

The files are generated and committed; a test holds them equal to what this module builds.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prony_dashboards.board import Board
from prony_dashboards.engine_board import engine_board
from prony_dashboards.engines import ENGINES
from prony_dashboards.latency import latency
from prony_dashboards.overview import overview
from prony_dashboards.shared_boards import compare_board, gpu_host_board, load_board

FOLDER: Final = Path(__file__).parents[1] / "grafana"


def boards() -> dict[str, Board]:
    """Every board by its file's path below the folder: a folder an engine, and the shared ones."""
    made = {}
    for name, engine in ENGINES.items():
        made[f"{name}/overview.json"] = overview(engine)
        made[f"{name}/latency.json"] = latency(engine)
        made[f"{name}/engine.json"] = engine_board(engine)
    made["shared/gpu-host.json"] = gpu_host_board()
    made["shared/load.json"] = load_board()
    made["shared/compare.json"] = compare_board()
    return made


def build(folder: Path) -> list[Path]:
    """Writes every board into the folder; returns the files."""
    written = []
    for name, made in boards().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_text(made), encoding="utf-8")
        written.append(path)
    return written


def stale(folder: Path) -> list[Path]:
    """The files of the folder that are missing, changed by hand, or no longer built."""
    wanted = {folder / name: as_text(made) for name, made in boards().items()}
    there = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.json"))}
    return sorted(path for path in wanted.keys() | there if wanted.get(path) != there.get(path))


def committed(folder: Path) -> dict[str, Board]:
    """The boards that lie in the folder, by their path below it."""
    return {
        str(path.relative_to(folder)): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.json"))
    }


def as_text(made: Board) -> str:
    """The board as it is committed: stable, so that a diff shows what changed and nothing else."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m prony_dashboards.boards")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the boards")
    action.add_argument("--check", action="store_true", help="fail where a file is not up to date")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    args = parser.parse_args(argv)
    if args.write:
        for path in build(args.folder):
            print(path)
        return 0
    wrong = stale(args.folder)
    for path in wrong:
        print(f"{path} is not what the code builds: run it with --write", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
