"""Logits of the rows that are to be continued come in, one token a row goes out.

A row's token depends on its own logits, parameters and random generator only, so a seeded request
gives the same text in any batch. One uniform number is drawn a token, and used in the inverse
cumulative distribution. Everything is done on the device, and the host waits for it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prony_server.sequence import SamplingParams, Sequence, TokenLogprobs

GREEDY_BELOW = 1e-5  # a temperature under this is greedy
NOT_A_NUMBER = -1  # in place of a token where the best logit is NaN or infinite
# Candidates looked at before sorting a whole vocabulary: a nucleus is rarely wider.
NARROW = 1024
_PIECE = 128  # tokens whose highest logit is found first
_WIDER = -2  # in place of a token that the candidates looked at do not decide


@dataclass(frozen=True, slots=True)
class Choices:
    """One entry a row. `logprobs` is None where no row asked for them."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None] | None


class Sampler:
    def __init__(
        self, max_rows: int, device: torch.device, eos_ids: frozenset[int] = frozenset()
    ) -> None:
        """`eos_ids` are not drawn before a request's `min_tokens`, unless it ignores them."""
        self._device = device
        self._eos_ids = eos_ids
        self._seen = _Tally(max_rows, device, with_prompt=True)
        self._generated = _Tally(max_rows, device, with_prompt=False)

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Choices:
        """logits: [len(sequences), vocabulary], may be overwritten."""
        logits = logits.float()
        altered, drawn, told = [], [], []
        for at, sequence in enumerate(sequences):
            params = sequence.params
            if params.alters_logits:
                altered.append(at)
            if params.temperature >= GREEDY_BELOW:
                drawn.append(at)
            if params.logprobs is not None:
                told.append(at)
        report = _Report(logits, told, sequences, self._device) if told else None
        if altered:
            self._alter(logits, altered, [sequences[at] for at in altered])
        best, tokens = _highest(logits)
        draw = None
        if drawn:
            rows = [sequences[at] for at in drawn]
            draw = _Draw(logits, best, _on(self._device, drawn), rows, self._device)
            draw.narrow(tokens)
        tokens.masked_fill_(~best.isfinite(), NOT_A_NUMBER)
        choices = _fetch(tokens, report)
        if draw is not None and _WIDER in choices.tokens:
            wider = [i for i, at in enumerate(drawn) if choices.tokens[at] == _WIDER]
            draw.whole(tokens, _on(self._device, wider))
            choices = _fetch(tokens, report)
        return choices

    def _alter(self, logits: Tensor, at: list[int], sequences: list[Sequence]) -> None:
        rows, tokens, biases = [], [], []
        for row, sequence in zip(at, sequences, strict=True):
            for token, bias in sequence.params.logit_bias:
                rows.append(row)
                tokens.append(token)
                biases.append(bias)
        if rows:
            places = _on(self._device, [rows, tokens])
            values = _on(self._device, biases, torch.float32)
            logits.index_put_((places[0], places[1]), values, accumulate=True)
        early = [
            (row, token)
            for row, sequence in zip(at, sequences, strict=True)
            for token in self._too_early(sequence)
        ]
        if early:
            places = _on(self._device, early)
            logits[places[:, 0], places[:, 1]] = -torch.inf
        self._penalise(logits, at, sequences)

    def _too_early(self, sequence: Sequence) -> Iterable[int]:
        params = sequence.params
        if len(sequence.tokens) - sequence.prompt_length >= params.min_tokens:
            return ()
        return params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self._eos_ids

    def _penalise(self, logits: Tensor, at: list[int], sequences: list[Sequence]) -> None:
        repeated = [i for i, s in enumerate(sequences) if s.params.repetition_penalty != 1.0]
        if repeated:
            rows = [sequences[i] for i in repeated]
            seen = self._seen.of(rows, logits.shape[1]) > 0
            where = _on(self._device, [at[i] for i in repeated])
            penalty = self._column(s.params.repetition_penalty for s in rows)
            mine = logits[where]
            lowered = torch.where(mine > 0, mine / penalty, mine * penalty)
            logits[where] = torch.where(seen, lowered, mine)
        counted = [
            i
            for i, s in enumerate(sequences)
            if s.params.presence_penalty or s.params.frequency_penalty
        ]
        if counted:
            rows = [sequences[i] for i in counted]
            counts = self._generated.of(rows, logits.shape[1])
            frequency = self._column(s.params.frequency_penalty for s in rows)
            presence = self._column(s.params.presence_penalty for s in rows)
            where = _on(self._device, [at[i] for i in counted])
            logits[where] -= frequency * counts + presence * (counts > 0)

    def _column(self, values: Iterable[float]) -> Tensor:
        return _on(self._device, list(values), torch.float32)[:, None]


class _Tally:
    """How often each token occurs in the sequence of each row, brought up to date when asked."""

    def __init__(self, max_rows: int, device: torch.device, with_prompt: bool) -> None:
        self._max_rows = max_rows
        self._device = device
        self._with_prompt = with_prompt
        self._counts: Tensor | None = None  # [rows, vocabulary], made for the first penalty
        self._noted: dict[int, tuple[Sequence, int]] = {}  # row -> whose, and how many tokens

    def of(self, sequences: list[Sequence], vocabulary: int) -> Tensor:
        """[len(sequences), vocabulary]"""
        if self._counts is None:
            shape = (self._max_rows, vocabulary)
            self._counts = torch.zeros(shape, dtype=torch.int32, device=self._device)
        rows: list[int] = []
        new: list[int] = []
        for sequence in sequences:
            owner, noted = self._noted.get(sequence.row, (None, 0))
            if owner is not sequence:
                noted = 0 if self._with_prompt else sequence.prompt_length
                self._counts[sequence.row] = 0
            fresh = sequence.tokens[noted:]
            rows += [sequence.row] * len(fresh)
            new += fresh
            self._noted[sequence.row] = (sequence, len(sequence.tokens))
        if new:
            places = _on(self._device, [rows, new])
            ones = torch.ones(len(new), dtype=torch.int32, device=self._device)
            self._counts.index_put_((places[0], places[1]), ones, accumulate=True)
        return self._counts[_on(self._device, [s.row for s in sequences])]


class _Draw:
    """The rows of one step that are drawn, each with its one uniform number."""

    def __init__(
        self,
        logits: Tensor,
        best: Tensor,
        at: Tensor,
        sequences: list[Sequence],
        device: torch.device,
    ) -> None:
        self._device = device
        self._at = at
        self._params = [sequence.params for sequence in sequences]
        vocabulary = logits.shape[1]
        numbers = [
            [p.temperature for p in self._params],
            [p.top_p for p in self._params],
            [p.min_p for p in self._params],
            [p.top_k or vocabulary for p in self._params],
            [sequence.rng.random() for sequence in sequences],
        ]
        self._numbers = _on(device, numbers, torch.float32)
        temperature = self._numbers[0, :, None]
        # In place: a pass over a batch's logits is what this costs.
        mine = logits if len(sequences) == len(logits) else logits[at]
        # Below the maximum, so that no temperature can overflow.
        mine.sub_(best[at, None]).div_(temperature)
        self._probabilities = torch.softmax(mine, dim=-1)

    def narrow(self, tokens: Tensor) -> None:
        """Writes each row's token, or _WIDER, to its place."""
        cut = [i for i, params in enumerate(self._params) if _is_cut(params)]
        if not cut:
            _, top_p, *_, uniform = self._numbers.unbind(0)
            tokens[self._at] = _pick(self._probabilities, top_p, uniform)
            return
        if len(cut) == len(self._params):
            tokens[self._at] = self._among(NARROW, self._probabilities, self._numbers)
            return
        whole = [i for i, params in enumerate(self._params) if not _is_cut(params)]
        mine = _on(self._device, whole)
        _, top_p, *_, uniform = self._numbers[:, mine].unbind(0)
        tokens[self._at[mine]] = _pick(self._probabilities[mine], top_p, uniform)
        mine = _on(self._device, cut)
        probabilities, numbers = self._probabilities[mine], self._numbers[:, mine]
        tokens[self._at[mine]] = self._among(NARROW, probabilities, numbers)

    def whole(self, tokens: Tensor, mine: Tensor) -> None:
        """The same for some rows by looking at all tokens."""
        probabilities, numbers = self._probabilities[mine], self._numbers[:, mine]
        tokens[self._at[mine]] = self._among(probabilities.shape[1], probabilities, numbers)

    def _among(self, width: int, probabilities: Tensor, numbers: Tensor) -> Tensor:
        """One token a row among its `width` likeliest, or _WIDER where these do not decide it."""
        _, top_p, min_p, top_k, uniform = numbers.unbind(0)
        vocabulary = probabilities.shape[1]
        if width < vocabulary:
            weights, ids = probabilities.topk(width, dim=-1)
        else:
            weights, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(weights.shape[1], device=self._device)
        kept = (rank < top_k[:, None]) & (weights >= min_p[:, None] * weights[:, :1])
        weights = weights * kept
        cumulative = weights.cumsum(dim=-1)
        # What top_k and min_p leave counts as a whole for top_p, as in vLLM.
        limited = (top_k < vocabulary) | (min_p > 0)
        target = torch.where(limited, top_p * cumulative[:, -1], top_p)
        picked = ids.gather(1, _pick(weights, target, uniform)[:, None])[:, 0]
        if width >= vocabulary:
            return picked
        undecided = kept[:, -1] & (limited | (cumulative[:, -1] < top_p))
        return picked.masked_fill_(undecided, _WIDER)


class _Report:
    """What is told of the rows that asked for logprobs, taken before anything alters them."""

    def __init__(
        self, logits: Tensor, told: list[int], sequences: list[Sequence], device: torch.device
    ) -> None:
        self.rows = told
        self.counts = [sequences[at].params.logprobs or 0 for at in told]
        self.at = _on(device, told)
        self.logprobs = logits[self.at].log_softmax(dim=-1)
        self.values, self.ids = self.logprobs.topk(min(max(self.counts), logits.shape[1]), dim=-1)

    def columns(self, tokens: Tensor) -> list[Tensor]:
        chosen = tokens[self.at].clamp(min=0)
        return [self.logprobs.gather(1, chosen[:, None]), self.values, self.ids]


def _highest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As max(dim=-1), the first of equals: of pieces, then in one. On a CPU in a fifth of the time,
    since there only a maximum without its place uses vector instructions."""
    rows, vocabulary = logits.shape
    if vocabulary % _PIECE:
        best, at = logits.max(dim=-1)
        return best, at
    pieces = logits.reshape(rows, -1, _PIECE)
    best, piece = pieces.amax(dim=-1).max(dim=-1)
    inside = pieces[torch.arange(rows, device=logits.device), piece].argmax(dim=-1)
    return best, piece * _PIECE + inside


def _fetch(tokens: Tensor, report: _Report | None) -> Choices:
    """The one wait for the device."""
    if report is None:
        return Choices(tokens.tolist(), None)
    parts = [tokens, *(part.flatten() for part in report.columns(tokens))]
    # Doubles hold token ids and logprobs alike, so all of it is one copy.
    flat = torch.cat([part.double() for part in parts]).tolist()
    sizes = [part.numel() for part in parts]
    chosen, values, ids = (flat[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(1, len(sizes)))
    width = report.ids.shape[1]
    logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
    for i, (row, count) in enumerate(zip(report.rows, report.counts, strict=True)):
        places = range(i * width, i * width + min(count, width))
        logprobs[row] = TokenLogprobs(chosen[i], tuple((int(ids[n]), values[n]) for n in places))
    return Choices([int(token) for token in flat[: len(tokens)]], logprobs)


def _is_cut(params: SamplingParams) -> bool:
    return params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0


def _pick(weights: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Index into each row of weights, by inverse cumulative distribution within its top_p mass."""
    cumulative = weights.cumsum(dim=-1)
    end = weights.shape[1] - 1
    last = torch.searchsorted(cumulative, top_p[:, None]).clamp_(max=end)
    mass = cumulative.gather(1, last)
    # Strictly under the mass, whatever rounding does: never beyond the nucleus, nor of weight 0.
    below = torch.nextafter(mass, torch.zeros_like(mass))
    threshold = torch.minimum(uniform[:, None] * mass, below)
    # A row of NaN finds no place; it must not fail the others.
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=end)


def _on(device: torch.device, values: Any, dtype: torch.dtype = torch.long) -> Tensor:
    """The values on the device; from pinned memory, so that the host does not wait for it."""
    tensor = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
