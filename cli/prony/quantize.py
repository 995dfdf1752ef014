"""What quantisation costs a model and brings: memory, speed, and how far its words drift.

Prints the before-and-after table of int8 and int4 weights (or those named), with calibration where
prompts are given, and of torch.compile where asked. `prony serve --quantize` then serves the same.
"""

import argparse
import dataclasses
import json
import logging
from importlib.util import find_spec
from pathlib import Path

from prony.errors import UsageError

HELP = "a model's weights as int8 and int4: memory, speed and drift, before and after"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="tiny, a model folder, or a hub name")
    add("--quantize", type=_bits, default=("int8", "int4"), metavar="int8,int4")
    add("--group-size", type=int, choices=(32, 64, 128, 256), default=32, help="of int4")
    add("--calibrate", type=Path, metavar="PROMPTS", help="a JSONL of prompts: a row more for each")
    add("--prompts", type=Path, metavar="PROMPTS", help="a JSONL of prompts to compare on")
    add("--compile", action="store_true", help="a row for torch.compile: a minute or more")
    add("--device", default="auto", choices=("auto", "cuda", "cpu"))
    add("--dtype", choices=("float32", "bfloat16", "float16"))
    add("--torch-threads", type=int, metavar="N")
    add("--json", action="store_true", help="one JSON object a row instead of a table")


def run(args: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise UsageError("quantisation needs torch: pip install 'prony[server]'")
    from prony_server.calibrate import PromptsError
    from prony_server.compiling import CompileRefused
    from prony_server.drift import compare, table, variants
    from prony_server.loading import ModelError

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    wanted = variants(args.quantize, args.group_size, args.calibrate, compile=args.compile)
    rows = []
    try:
        for row in compare(
            args.model,
            wanted,
            device=args.device,
            dtype=args.dtype,
            prompts=args.prompts,
            torch_threads=args.torch_threads,
        ):
            rows.append(row)
            if args.json:
                print(json.dumps(dataclasses.asdict(row)), flush=True)
    except (ModelError, PromptsError, CompileRefused) as error:
        raise UsageError(str(error)) from None
    if not args.json:
        print(table(rows))
    return 0


def _bits(text: str) -> tuple[str, ...]:
    bits = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [each for each in bits if each not in ("int8", "int4")]
    if wrong or not bits:
        raise argparse.ArgumentTypeError(f"expected int8, int4 or int8,int4, got {text!r}")
    return bits
