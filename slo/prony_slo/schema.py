"""Writes the JSON Schema of SLO files: `python -m prony_slo.schema > docs/slo.schema.json`."""

import json
from typing import Any

from prony_slo.slo_model import SloModel


def schema() -> dict[str, Any]:
    """What editors check an SLO file against."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**dialect, **_plain(SloModel.model_json_schema())}


def _plain(part: Any) -> Any:
    """Without what says nothing to an editor: titles made from names, and defaults of null."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _plain(value)
        for key, value in part.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and value is None)
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
