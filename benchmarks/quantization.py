"""What int8 and int4 weights cost a model and bring: memory, tokens/s, KL and greedy agreement.

`prony quantize` on SmolLM2-135M, each with and without calibration by the questions that ship as a
scenario (none of which is among the prompts compared on), and as one JSON object at the end: of
each way the memory and speeds over those of the model as it is.

int4 is shown in groups of 32 and of 64: this SmolLM2 was made from a file of 4-bit weights with a
scale and a least value for every 32 (GGUF's Q4_1), so that groups of 32 bring its weights back
nearly as they were, which no model that was trained in more bits would see.

    python benchmarks/quantization.py [--quick] [--compile] [--model PATH] [--dtype D] [--threads N]

--quick: int8 and int4 of 64, the latter with and without calibration, on 8 of the 12 prompts.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from prony_server.drift import BATCH, Row, compare, table, variants
from prony_server.quantize import BITS

QUESTIONS = Path(__file__).parents[1] / "loadgen/scenarios/questions.jsonl"
CACHE = Path(os.environ.get("PRONY_CACHE", "~/.cache/prony")).expanduser()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows: under 50 s")
    parser.add_argument("--compile", action="store_true", help="and a row for torch.compile")
    parser.add_argument("--model", default=str(CACHE / "models" / "smollm2-135m"))
    parser.add_argument("--dtype", help="default: float32 on a CPU, the model's own on a GPU")
    parser.add_argument("--threads", type=int, default=2, help="torch's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        wanted = variants(("int8",), 32, None, compile=options.compile)
    else:
        wanted = variants(BITS, 32, QUESTIONS, compile=options.compile)
    wanted += variants(("int4",), 64, QUESTIONS, compile=False)
    most = BATCH if options.quick else None
    rows = list(compare(options.model, wanted, dtype=options.dtype, most_prompts=most))
    print(table(rows))
    figures: dict[str, Any] = {
        name: figure for row in rows[1:] for name, figure in _figures(row, rows[0]).items()
    }
    figures |= {"model": Path(options.model).name, "threads": options.threads}
    print(json.dumps(figures))


def _figures(row: Row, first: Row) -> dict[str, float | None]:
    figures = {
        "memory": row.weight_bytes / first.weight_bytes,
        "speed": row.tokens_per_s / first.tokens_per_s,
        "speed_8": row.batch_tokens_per_s / first.batch_tokens_per_s,
        "kl": row.kl,
        "agreement": row.agreement,
    }
    start = row.name.replace(" ", "_")
    return {
        f"{start}_{name}": None if value is None else round(value, 4)
        for name, value in figures.items()
    }


if __name__ == "__main__":
    main()
