"""Logits of the rows that are to be continued come in, one token a row goes out.

A row's token depends on its own logits, parameters and random generator only, so a seeded request
gives the same text in any batch. One uniform number is drawn a token, and used in the inverse
cumulative distribution.
"""

import torch
from torch import Tensor

from prony_server.sequence import Sequence

GREEDY_BELOW = 1e-5  # a temperature under this is greedy
NOT_A_NUMBER = -1  # in place of a token where the best logit is NaN or infinite
# Candidates looked at before sorting a whole vocabulary: a nucleus is rarely wider.
NARROW = 1024


class Sampler:
    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._seen: Tensor | None = None  # [rows, vocabulary], made for the first penalty
        self._max_rows = max_rows
        self._noted: dict[int, tuple[Sequence, int]] = {}  # row -> whose, and how many tokens

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        """logits: [len(sequences), vocabulary], may be overwritten."""
        logits = logits.float()
        penalised, drawn = [], []
        for at, sequence in enumerate(sequences):
            params = sequence.params
            if params.repetition_penalty != 1.0:
                penalised.append(at)
            if params.temperature >= GREEDY_BELOW:
                drawn.append(at)
        if penalised:
            self._penalise(logits, penalised, [sequences[at] for at in penalised])
        best, tokens = logits.max(dim=-1)
        if drawn:
            self._draw(logits, best, tokens, drawn, [sequences[at] for at in drawn])
        return tokens.masked_fill_(~best.isfinite(), NOT_A_NUMBER)

    def _draw(
        self,
        logits: Tensor,
        best: Tensor,
        tokens: Tensor,
        drawn: list[int],
        sequences: list[Sequence],
    ) -> None:
        temperature, top_p, uniform = torch.tensor(
            [
                [s.params.temperature for s in sequences],
                [s.params.top_p for s in sequences],
                [s.rng.random() for s in sequences],
            ],
            device=self._device,
        )
        at = torch.tensor(drawn, device=self._device)
        # Below the maximum, so that no temperature can overflow.
        scaled = (logits[at] - best[at, None]) / temperature[:, None]
        probabilities = torch.softmax(scaled, dim=-1)
        whole = [i for i, s in enumerate(sequences) if s.params.top_p >= 1.0]
        if len(whole) == len(drawn):
            tokens[at] = _pick(probabilities, top_p, uniform)
            return
        nucleus = [i for i, s in enumerate(sequences) if s.params.top_p < 1.0]
        for rows, choose in ((whole, _pick), (nucleus, _pick_from_nucleus)):
            if rows:
                mine = torch.tensor(rows, device=self._device)
                tokens[at[mine]] = choose(probabilities[mine], top_p[mine], uniform[mine])

    def _penalise(self, logits: Tensor, at: list[int], sequences: list[Sequence]) -> None:
        """As in transformers: every token of the prompt and the output so far counts once."""
        if self._seen is None:
            shape = (self._max_rows, logits.shape[1])
            self._seen = torch.zeros(shape, dtype=torch.bool, device=self._device)
        rows: list[int] = []
        new: list[int] = []
        for sequence in sequences:
            owner, noted = self._noted.get(sequence.row, (None, 0))
            if owner is not sequence:
                noted = 0
                self._seen[sequence.row] = False
            fresh = sequence.tokens[noted:]
            rows += [sequence.row] * len(fresh)
            new += fresh
            self._noted[sequence.row] = (sequence, len(sequence.tokens))
        marks = torch.tensor([rows, new], device=self._device)
        self._seen[marks[0], marks[1]] = True
        where = torch.tensor(at, device=self._device)
        seen = self._seen[torch.tensor([s.row for s in sequences], device=self._device)]
        penalty = torch.tensor(
            [s.params.repetition_penalty for s in sequences], device=self._device
        )[:, None]
        mine = logits[where]
        lowered = torch.where(mine > 0, mine / penalty, mine * penalty)
        logits[where] = torch.where(seen, lowered, mine)


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


def _pick_from_nucleus(probabilities: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    width = min(NARROW, probabilities.shape[1])
    weights, ids = probabilities.topk(width, dim=-1)
    tokens = ids.gather(1, _pick(weights, top_p, uniform)[:, None])[:, 0]
    if width < probabilities.shape[1]:
        wide = (weights.sum(dim=-1) < top_p).nonzero()[:, 0]
        if wide.numel():
            weights, ids = probabilities[wide].sort(dim=-1, descending=True, stable=True)
            picked = _pick(weights, top_p[wide], uniform[wide])
            tokens[wide] = ids.gather(1, picked[:, None])[:, 0]
    return tokens
