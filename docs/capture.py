"""A picture of what a command prints in a terminal: a command goes in, an SVG comes out.

    python docs/capture.py [--as TEXT] docs/bottlenecks/batch_slots.svg prony diagnose runs/latest

--as TEXT is what the picture tells of the command, without paths of the machine.
"""

import argparse
import os
import re
import subprocess
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100  # characters
# Fonts from the network: a picture is to look the same without one.
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--as", dest="told", help="the command as the picture tells it")
    parser.add_argument("svg", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    told = options.told or " ".join(options.command)
    environ = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    done = subprocess.run(options.command, env=environ, capture_output=True, text=True, check=True)
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(Text(f"$ {told}", style="bold"))
    console.print(Text.from_ansi(done.stdout))
    options.svg.parent.mkdir(parents=True, exist_ok=True)
    svg = FONT.sub("", console.export_svg(title=told))
    options.svg.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
