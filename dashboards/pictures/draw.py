"""Pictures of the boards: collect.py's file goes in, a PNG a board comes out, by headless Chromium.

The panels are Grafana's own components, bundled by esbuild from a folder where npm installed them.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
WIDTH: Final = 1600  # pixels
# 96 colours: a third of the size, and no eye can tell.
SMALLER: Final = """
const fs = require('fs'), png = require('upng-js'), [, file] = process.argv;
const read = png.decode(fs.readFileSync(file));
fs.writeFileSync(file, Buffer.from(png.encode(png.toRGBA8(read), read.width, read.height, 96)));
"""
PAGE: Final = """<!doctype html><meta charset="utf-8">
<link rel="stylesheet" href="page.css"><body style="margin:0"><div id="root"></div>
<script>window.ASKED = %s</script><script src="page.js"></script>"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", type=Path, help="what collect.py wrote")
    parser.add_argument("npm", type=Path, help="the folder whose node_modules holds Grafana's")
    parser.add_argument("out", type=Path, help="the folder for boards-*.png")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("needs chromium", file=sys.stderr)
        return 3
    text = args.asked.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _bundle(args.npm, folder / "page.js")
        page = folder / "page.html"
        page.write_text(PAGE % text.replace("</", "<\\/"), encoding="utf-8")
        for number, board in enumerate(json.loads(text)["boards"]):
            rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
            picture = args.out / f"boards-{board['title'].split(': ')[1].lower()}.png"
            subprocess.run(
                [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{64 + 38 * rows}",
                 "--virtual-time-budget=8000", f"--screenshot={picture.resolve()}",
                 f"{page.as_uri()}?board={number}"],
                check=True, stderr=subprocess.DEVNULL, timeout=180,
            )  # fmt: skip
            subprocess.run(["node", "-e", SMALLER, picture.resolve()], cwd=args.npm, check=True)
            print(f"{picture}: {picture.stat().st_size // 1000} kB")
    return 0


def _bundle(npm: Path, out: Path) -> None:
    # Beside node_modules, because esbuild looks for packages from the entry's folder up.
    entry = npm / "page.tsx"
    shutil.copyfile(HERE / "page.tsx", entry)
    subprocess.run(
        [npm / "node_modules/.bin/esbuild", entry, "--bundle", "--minify", "--format=iife",
         "--define:process.env.NODE_ENV=\"production\"", "--loader:.svg=dataurl",
         "--loader:.ttf=empty", "--log-level=error", f"--outfile={out}"],
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
