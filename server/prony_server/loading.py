"""A model's name comes in (`tiny`, a folder, or a hub id), a model and its tokenizer come out."""

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony_server.quantize import Bits

GROUPS = (32, 64, 128, 256)  # of int4; what torch's kernels know
DTYPES = ("float32", "bfloat16", "float16")
WEIGHTS = ("*.safetensors", "*.bin")
HUB_SECONDS = 10.0  # for an answer to "is there such a model"


class ModelError(Exception):
    """One line: what could not be loaded, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Quantization:
    bits: "Bits"
    group: int = 32  # int4's: inputs that share a scale
    calibrate: Path | None = None  # JSONL of prompts


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Any  # a transformers causal LM, in eval mode, on the device
    tokenizer: Any  # a PreTrainedTokenizerBase
    name: str
    eos_ids: frozenset[int]
    max_model_len: int | None  # the context it was made for, if its config says


def load(
    model: str,
    device: str = "auto",
    dtype: str | None = None,
    quantized: Quantization | None = None,
) -> Loaded:
    """`device`: auto, cpu, cuda[:n]. `dtype`: by default float32 on CPU, else the model's."""
    import torch

    from prony_server.products import say_slow_dtype, speed_up
    from prony_server.runner import context_length
    from prony_server.tiny import tiny_model, tiny_tokenizer

    _quieten()
    place = _device(device)
    numbers = _dtype(dtype, place)
    if model == "tiny":
        loaded, tokenizer, name = tiny_model(), tiny_tokenizer(), "tiny"
        if isinstance(numbers, torch.dtype):
            loaded = loaded.to(numbers)
    else:
        folder, name = _folder(model)
        loaded, tokenizer = _from_folder(folder, model, numbers)
    try:
        if quantized is not None:
            # Before the rest moves: a model that fits only quantised is never there whole.
            _quantize(loaded, tokenizer, quantized, place)
        loaded = loaded.to(place).eval()
    except RuntimeError as error:
        raise ModelError(f"{model} does not fit on {place}: {_first_line(error)}") from error
    say_slow_dtype(loaded)
    speed_up(loaded)
    return Loaded(loaded, tokenizer, name, _eos_ids(loaded, tokenizer), context_length(loaded))


def _quantize(model: Any, tokenizer: Any, wanted: Quantization, place: Any) -> None:
    from prony_server.calibrate import PromptsError, read_prompts
    from prony_server.quantize import quantize

    try:
        prompts = None
        if wanted.calibrate is not None:
            prompts = read_prompts(wanted.calibrate, tokenizer)
            model.to(place)  # where it reads them sooner
        report = quantize(model, wanted.bits, wanted.group, prompts, place)
    except PromptsError as error:
        raise ModelError(f"calibration: {error}") from error
    except ValueError as error:
        raise ModelError(f"quantize {wanted.bits}: {error}") from error
    logging.getLogger(__name__).info(
        "quantized %s%s",
        report,
        "" if prompts is None else f"; calibrated on {len(prompts)} prompts",
    )


def _quieten() -> None:
    # Set before transformers reads it: a progress bar per file is noise in a server's log.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from huggingface_hub import utils
    from transformers.utils import logging as transformers_logging

    hub: Any = utils
    hub.disable_progress_bars()
    says: Any = transformers_logging
    says.disable_progress_bar()
    says.set_verbosity_error()


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is not auto, cpu or cuda") from error
    if place.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not auto, cpu or cuda")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {name!r}: torch {torch.__version__} finds no CUDA device; use --device cpu"
        )
    return place


def _dtype(name: str | None, place: Any) -> Any:
    import torch

    if name is None:
        # On CPUs bfloat16 is mostly emulated: up to four times slower in a batch.
        return torch.float32 if place.type == "cpu" else "auto"
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return getattr(torch, name)


def _folder(model: str) -> tuple[Path, str]:
    path = Path(model).expanduser()
    if path.exists():
        missing = _missing(path)
        if missing:
            raise ModelError(f"{model}: {missing}")
        return path, path.resolve().name
    # Only `org/name`, or a bare name, can be on a hub; the rest was meant as a path.
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise ModelError(f"{model}: no such folder")
    return _from_hub(model), model


def _missing(path: Path) -> str | None:
    """What keeps a folder from being a transformers model, or None."""
    if not path.is_dir():
        return "not a folder; expected a transformers folder with config.json and weights"
    if not (path / "config.json").is_file():
        return "config.json is missing; expected a transformers folder"
    if not any(any(path.glob(pattern)) for pattern in WEIGHTS):
        return f"no weights; expected one of {', '.join(WEIGHTS)} beside config.json"
    return None


def _from_folder(folder: Path, name: str, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except Exception as error:
            # Whatever it is (a broken file, an architecture unknown here): one line.
            raise ModelError(f"{name}: cannot load the model: {_first_line(error)}") from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise ModelError(f"{name}: cannot load the tokenizer: {_first_line(error)}") from error
    return model, tokenizer


def _from_hub(name: str) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    remedy = (
        "set HF_ENDPOINT to a hub or mirror that this machine reaches, or give the path of a model "
        "folder (or `tiny`)"
    )
    wanted = ["*.json", "*.model", "*.txt", "*.jinja"]
    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if not _missing(cached):
            return cached
    except HFValidationError as error:
        raise ModelError(f"{name}: no such folder, and not a hub id (org/name)") from error
    except OSError:  # not in the cache
        pass
    if constants.HF_HUB_OFFLINE:
        raise ModelError(f"{name}: no such folder, and HF_HUB_OFFLINE is set; {remedy}")
    try:
        # One short question first: a download would retry for minutes where there is no network.
        info = HfApi().model_info(name, timeout=HUB_SECONDS)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        safe = any(file.endswith(".safetensors") for file in files)
        wanted.append("*.safetensors" if safe else "*.bin")
        logging.getLogger(__name__).info("downloading %s from %s", name, constants.ENDPOINT)
        folder = Path(snapshot_download(name, allow_patterns=wanted))
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name}: no such folder, and {constants.ENDPOINT} has no such model (or keeps it "
            f"private: set HF_TOKEN); {remedy}"
        ) from error
    except HfHubHTTPError as error:
        raise ModelError(
            f"{name}: {constants.ENDPOINT} answered {_first_line(error)}; {remedy}"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{name}: no such folder, and the hub {constants.ENDPOINT} cannot be reached "
            f"({type(error).__name__}); {remedy}"
        ) from error
    missing = _missing(folder)
    if missing:
        raise ModelError(f"{name}: {missing}")
    return folder


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that any of the model's files calls an end: chat models often name two."""
    named = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    ids: set[int] = set()
    for name in named:
        if name is not None:
            ids.update(name if isinstance(name, (list, tuple)) else [name])
    return frozenset(ids)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
