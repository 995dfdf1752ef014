"""Activation-aware scales: a model and prompts come in, a scale for each input of its layers out.

After AWQ (Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and
Acceleration", arXiv:2306.00978, section 3.2): inputs that are large on real text matter most, so
their weights are scaled up before rounding and the input down by as much, s = mean|x| ^ alpha, with
the alpha of the least error in the layer's own output. AWQ folds the division into the operation
before; here the layer multiplies its input, which needs no knowledge of the model.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

ALPHAS = tuple(step / 10 for step in range(11))  # 0: no scaling
SAMPLES = 128  # inputs of each layer that alphas are judged by, spread over all prompts
OUTPUTS = 256  # of each layer that alphas are judged by, evenly spread
MOST_TOKENS = 512  # of a prompt; what follows tells little more


class PromptsError(ValueError):
    """A file of prompts that cannot be used: names the file, the line and what was expected."""


def read_prompts(file: Path, tokenizer: Any) -> list[list[int]]:
    """Token ids of a JSONL file's prompts: {"prompt": text} or {"messages": [...]} a line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{file}: cannot be read: {error}") from None
    prompts = [
        _ids(tokenizer, line, f"{file}:{number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise PromptsError(f"{file}: has no prompt; expected a JSON object a line")
    return prompts


def _ids(tokenizer: Any, line: str, where: str) -> list[int]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise PromptsError(f"{where}: is not JSON: {error}") from None
    match entry:
        case {"prompt": str(text)}:
            ids = tokenizer(text)["input_ids"]
        case {"messages": list(messages)}:
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False)
            except Exception as error:  # a template may raise anything
                raise PromptsError(f"{where}: messages do not fit the template: {error}") from None
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        case _:
            raise PromptsError(
                f'{where}: expected {{"prompt": text}} or {{"messages": [...]}}, got {line:.60}'
            )
    if not ids:
        raise PromptsError(f"{where}: the prompt has no tokens")
    return list(ids[:MOST_TOKENS])


class _Inputs:
    """What came into one layer: the mean size of each input, and some rows."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0
        self.rows: list[Tensor] = []

    def note(self, per_prompt: int, _: torch.nn.Module, arguments: tuple[Tensor, ...]) -> None:
        rows = arguments[0].detach().reshape(-1, arguments[0].shape[-1])
        self.total = self.total + rows.abs().sum(dim=0, dtype=torch.float32)
        self.count += rows.shape[0]
        at = torch.linspace(0, rows.shape[0] - 1, min(per_prompt, rows.shape[0])).long()
        self.rows.append(rows[at.to(rows.device)].float())


@torch.no_grad()
def input_scales(
    model: Any,
    layers: Mapping[str, torch.nn.Linear],
    prompts: list[list[int]],
    rounded: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """What each layer's weights are to be multiplied by, input by input, before they are rounded.

    `rounded`: weights as they come back from quantisation. A layer that no prompt reached (an
    expert, say) has no entry.
    """
    seen = {name: _Inputs() for name in layers}
    per_prompt = max(1, SAMPLES // len(prompts))
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hook = layer.register_forward_pre_hook(partial(seen[name].note, per_prompt))
            hooks.callback(hook.remove)
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return {
        name: _best(_some(layer.weight).float(), seen[name], rounded)
        for name, layer in layers.items()
        if seen[name].count
    }


def _some(weight: Tensor) -> Tensor:
    return weight[:: max(1, weight.shape[0] // OUTPUTS)]


def _best(weight: Tensor, inputs: _Inputs, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    rows = torch.cat(inputs.rows)[:SAMPLES]
    size = (torch.as_tensor(inputs.total) / inputs.count).clamp_min(1e-4)
    right = linear(rows, weight)
    errors = []
    for alpha in ALPHAS:
        scale = _scale(size, alpha)
        errors.append((linear(rows / scale, rounded(weight * scale)) - right).square().mean())
    return _scale(size, ALPHAS[int(torch.stack(errors).argmin())])


def _scale(size: Tensor, alpha: float) -> Tensor:
    scale = size**alpha
    return scale / (scale.max() * scale.min()).sqrt()
