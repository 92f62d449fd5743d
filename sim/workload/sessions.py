"""Conversations: which rows are turns of one session, when they may come, and how their prompts grow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.random_streams import Streams
from sim.scenario.requests import FixedTurns, GeometricTurns, SessionsSection, TurnCount, UniformTurns
from sim.values import Floats, Ints
from sim.workload.times import draw_times_s


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """All turns, session by session: the session of each, its turn from 0, and the time thought before."""

    session: Ints
    turn: Ints
    think_s: Floats

    def __len__(self) -> int:
        return len(self.session)

    @property
    def begins(self) -> Ints:
        """For each row, the row of its session's first turn."""
        return np.arange(len(self)) - self.turn


def draw_turns(section: SessionsSection, num_sessions: int, streams: Streams) -> Turns:
    """The turns of `num_sessions` sessions; nobody thinks before the first."""
    counts = _draw_counts(section.turns, num_sessions, streams("sessions.turns"))
    session = np.repeat(np.arange(num_sessions), counts)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(counts) - counts, counts)
    think_s = np.zeros(len(session))
    if section.think_time_s is not None:
        think_s = draw_times_s(section.think_time_s, len(session), streams("sessions.think"))
        think_s[turn == 0] = 0.0
    return Turns(session, turn, think_s)


def _draw_counts(section: TurnCount, count: int, rng: np.random.Generator) -> Ints:
    match section:
        case FixedTurns():
            return np.full(count, section.value, np.int64)
        case UniformTurns():
            low, high = section.range
            return rng.integers(low, high, count, endpoint=True, dtype=np.int64)
        case GeometricTurns():
            return rng.geometric(1 / section.mean, count).astype(np.int64)
    raise TypeError(f"{type(section).__name__} is no number of turns")


def growing_prompts(turns: Turns, message: Ints, output: Ints) -> Ints:
    """Prompt tokens of each turn: all messages and answers of the session before it, and its own message."""
    said = np.cumsum(message + output)
    begins = turns.begins
    before = said[begins] - message[begins] - output[begins]
    prompt: Ints = said - before - output
    return prompt


def cut_sessions(turns: Turns, prompt: Ints, output: Ints, max_model_len: int) -> npt.NDArray[np.bool_]:
    """Which turns stay: a session ends before the first turn that exceeds the context, if not with its first.

    A first turn that exceeds it stays alone, for `over_length` to deal with.
    """
    over = np.cumsum(prompt + output > max_model_len)
    begins = turns.begins
    first_is_over = prompt[begins] + output[begins] > max_model_len
    kept: npt.NDArray[np.bool_] = (over - over[begins] + first_is_over == 0) | (turns.turn == 0)
    return kept


def turns_in_trace(session: Ints, prompt: Ints, output: Ints) -> tuple[Ints, Ints]:
    """For rows of a trace in order of time: the row of the turn before each (-1: none), and its text.

    A prompt that is at least as long as the prompt and output before it repeats them and goes on; a shorter
    one begins a new text. Texts are numbered by the row that begins them.
    """
    count = len(session)
    order = np.lexsort((np.arange(count), session))
    before = np.concatenate([[-1], order[:-1]])
    same = np.concatenate([[False], session[order][1:] == session[order][:-1]]) & (session[order] >= 0)
    goes_on = same & (prompt[order] >= (prompt + output)[before])
    begin = np.maximum.accumulate(np.where(goes_on, 0, np.arange(count)))
    after, text = np.empty(count, np.int64), np.empty(count, np.int64)
    after[order] = np.where(same, before, -1)
    text[order] = order[begin]
    return after, text
