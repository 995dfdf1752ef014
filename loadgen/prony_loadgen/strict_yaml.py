"""YAML that people write: text comes in, a validated model or every error with its line goes out.

Errors read `chat.yaml:7: arrivals.rat: unknown key; did you mean 'rate'? (valid: ...)`, and all
errors of a file come at once.
"""

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import pydantic
import yaml
from pydantic import BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema

M = TypeVar("M", bound=pydantic.BaseModel)
Loc = tuple[int | str, ...]

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zµ]+)\s*")
# What nobody means, but for a slip of the keyboard.
MOST_TOKENS = 10_000_000  # of one prompt or output
LONGEST = 7 * 86400.0  # seconds that anything may last
_RATIO = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%|pp)\s*")


class FileError(ValueError):
    """What is wrong with a file or with the options that change it: one line an error."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class StrictModel(pydantic.BaseModel):
    """The base of every model of such a file: unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True
    )


def parse_duration(value: object) -> float:
    """Seconds of "500ms", "2s", "1.5m" or "1h". Raises ValueError that says what was expected."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"needs a unit, for example {value:g}s; got {value!r}")
    match = _DURATION.fullmatch(value.lower()) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        if isinstance(value, str) and re.fullmatch(r"\s*[\d.]+\s*", value):
            raise ValueError(f"needs a unit, for example {value.strip()}s; got {value!r}")
        raise ValueError(f"must be a duration such as 500ms, 2s, 1.5m or 1h; got {value!r}")
    return float(match[1]) * _UNITS[match[2]]


def parse_ratio(value: object) -> float:
    """A share between 0 and 1 of "99%", 0.99 or "1pp" (a percentage point). Raises ValueError."""
    share = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    elif isinstance(value, str) and (match := _RATIO.fullmatch(value)):
        share = float(match[1]) / 100
    elif isinstance(value, str) and re.fullmatch(r"\s*\d*\.?\d+\s*", value):
        share = float(value)
    if share is None or not 0 <= share <= 1:
        raise ValueError(f"must be a ratio such as 99% or 0.99; got {value!r}")
    return share


def _no_bool(value: object) -> object:
    # YAML 1.1 reads `yes` and `on` as true, which pydantic would then count as 1.
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {value!r}")
    return value


# The context to validate a model's own dump by: its durations are plain seconds.
AS_DUMPED = {"durations": "seconds"}


def to_seconds(value: object, info: ValidationInfo) -> float:
    """What a Duration is read as. Raises ValueError."""
    if info.context is AS_DUMPED and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    seconds = parse_duration(value)
    if seconds > LONGEST:
        raise ValueError(f"must be at most {LONGEST / 86400:g} days, got {value!r}")
    return seconds


DURATION_SCHEMA = {"type": "string", "pattern": r"^\d*\.?\d+ ?(us|ms|s|m|min|h)$"}
Duration = Annotated[
    float, BeforeValidator(to_seconds), WithJsonSchema(DURATION_SCHEMA, mode="validation")
]
Ratio = Annotated[
    float, BeforeValidator(parse_ratio), WithJsonSchema({"type": ["number", "string"]})
]
Number = Annotated[float, BeforeValidator(_no_bool)]
Count = Annotated[int, BeforeValidator(_no_bool)]


@dataclass(frozen=True, slots=True)
class Override:
    """A value from the command line that replaces one of the file's."""

    option: str  # how errors name it: "--rate"
    path: tuple[str, ...]  # ("arrivals", "rate")
    value: object  # as YAML would have read it


def load(
    path: Path,
    model: type[M],
    overrides: tuple[Override, ...] = (),
    make_room: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data,
) -> M:
    """The model of the file at `path`. Raises FileError, also where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise FileError(
            [f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"]
        ) from None
    return loads(text, path.name, model, overrides, make_room)


def loads(
    text: str,
    name: str,
    model: type[M],
    overrides: tuple[Override, ...] = (),
    make_room: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data,
) -> M:
    """The model of YAML `text`; `name` is what errors call it. Raises FileError.

    `make_room` changes the file's values before the overrides come, where those replace more
    than their own key.
    """
    root, data = _read(text, name)
    errors = [f"{name}:{line}: {key}: this key was given before" for key, line in _repeated(root)]
    data = apply(make_room(data), overrides)
    try:
        validated = model.model_validate(data)
    except pydantic.ValidationError as error:
        of_file = _errors_of(model, _read(text, name)[1]) if overrides else set()
        for one in error.errors():
            alone = (one["loc"], one["msg"]) in of_file
            errors.append(_describe(one, name, root, model, overrides, alone))
        validated = None
    if errors or validated is None:
        raise FileError(_unique(errors))
    return validated


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'rate'?" where one of `known` is near, else ""."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def apply(data: dict[str, Any], overrides: tuple[Override, ...]) -> dict[str, Any]:
    """A copy of `data` with each override in its place; mappings on the way are made."""
    changed = dict(data)
    for override in overrides:
        at = changed
        for key in override.path[:-1]:
            below = at.get(key)
            at[key] = dict(below) if isinstance(below, dict) else {}
            at = at[key]
        at[override.path[-1]] = override.value
    return changed


def _read(text: str, name: str) -> tuple[yaml.Node, dict[str, Any]]:
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        data = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FileError([f"{name}:{line}: not valid YAML: {error.problem}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise FileError([f"{name}: not valid YAML: {reason}"]) from None
    except RecursionError:
        raise FileError([f"{name}: nested too deeply"]) from None
    if root is None or data is None:
        raise FileError([f"{name}: the file is empty"])
    if not isinstance(data, dict):
        raise FileError([f"{name}:1: must be a mapping of keys to values, got {_short(data)}"])
    return root, data


def _repeated(root: yaml.Node) -> Iterator[tuple[str, int]]:
    """Every key given twice in one mapping, with the line of the second."""
    todo: list[yaml.Node] = [root]
    seen_nodes: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen_nodes:  # an alias
            continue
        seen_nodes.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo.extend(node.value)
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if key.value in keys:
                    yield str(key.value), key.start_mark.line + 1
                keys.add(str(key.value))
                todo.append(value)


def _errors_of(model: type[pydantic.BaseModel], data: dict[str, Any]) -> set[tuple[Loc, str]]:
    try:
        model.model_validate(data)
    except pydantic.ValidationError as error:
        return {(one["loc"], one["msg"]) for one in error.errors()}
    return set()


def _describe(
    error: Any,
    name: str,
    root: yaml.Node,
    model: type[pydantic.BaseModel],
    overrides: tuple[Override, ...],
    alone: bool,
) -> str:
    """The line of an error; `alone`: the file has it without the overrides too."""
    return f"{_place(error['loc'], name, root, overrides, alone)}: {_problem(error, model)}"


def _place(
    loc: Loc, name: str, root: yaml.Node, overrides: tuple[Override, ...], alone: bool
) -> str:
    """ "chat.yaml:7: arrivals.rate", or the options that brought the value."""
    line, path = _resolve(root, loc)
    by_option = [o for o in overrides if loc[: len(o.path)] == o.path]
    if by_option:
        option = by_option[-1]
        rest = "".join(f".{key}" for key in loc[len(option.path) :])
        return f"{option.option}{rest}"
    # What only came with the options is about several keys, or about a mapping that they made.
    below = [o.option for o in overrides if o.path[: len(loc)] == loc]
    if below and not alone:
        return " with ".join(dict.fromkeys(below)) + (f": {path}" if path else "")
    return f"{name}:{line}: {path}" if path else f"{name}:{line}"


def _resolve(root: yaml.Node, loc: Loc) -> tuple[int, str]:
    """The line of `loc` (or of what holds it), and how a person writes it.

    Parts that are not in the file, but the last, are pydantic's own (a union's tag): left out.
    """
    node, line, path = root, root.start_mark.line + 1, ""
    for depth, part in enumerate(loc):
        found: yaml.Node | None = None
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
            line = found.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, found = key.start_mark.line + 1, value
        if found is None and depth + 1 < len(loc):
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
        node = found or node
    return line, path


def _problem(error: Any, model: type[pydantic.BaseModel]) -> str:
    kind, got = error["type"], _short(error["input"])
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        known = sorted(_keys_at(model, error["loc"][:-1]))
        guess = nearest(str(error["loc"][-1]), known)
        return f"unknown key{guess} (valid: {', '.join(known)})"
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        wanted = re.findall(r"'([^']*)'", context["expected"])
        guess = nearest(str(error["input"]), wanted)
        return f"must be one of {', '.join(wanted)}, got {got}{guess}"
    message = str(error["msg"])
    for told, ours in (
        ("Input should be greater than or equal to", "must be at least"),
        ("Input should be less than or equal to", "must be at most"),
        ("Input should be greater than", "must be above"),
        ("Input should be less than", "must be below"),
        ("Input should be a valid dictionary or instance of", "must be a mapping, a"),
        ("Input should be", "must be"),
    ):
        message = message.replace(told, ours)
    return f"{message[:1].lower()}{message[1:]}, got {got}"


def _keys_at(model: type[pydantic.BaseModel], loc: Loc) -> set[str]:
    """The keys that the models at `loc` know."""
    models = {model}
    for part in loc:
        below: set[type[pydantic.BaseModel]] = set()
        for one in models:
            field = _fields(one).get(str(part))
            if field is not None:
                below |= set(_models_in(field.annotation))
        # A list index or a union's tag stays at the same models.
        models = below or models
    return {key for one in models for key in _fields(one)}


def _fields(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    elif get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for argument in get_args(annotation):
            yield from _models_in(argument)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unique(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def read_value(text: str) -> object:
    """What YAML reads from the text of an option: "5" is 5, "{a: 1}" a mapping, else the text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
